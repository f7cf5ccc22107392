"""Which tests share one of pytest-xdist's processes, and in which order they begin.

Spark, a deployment and each client start once. The longest tests begin first, so that at the end no process still runs
a long test while the others have nothing to do. Tests that mostly wait run beside those that compute.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

#: Tests of one group run in one process, one after the other. All others go to whichever process is free.
GROUPS = {
    "tests/pipeline/test_archive.py": "spark",
    "tests/pipeline/test_data_source.py": "spark",
    "tests/pipeline/test_rollup.py": "spark",
    "tests/pipeline/test_session_processes.py": "spark",
    "tests/pipeline/test_subscription_source.py": "spark",
    # A second session costs less than the wait until one has served all of these.
    "tests/pipeline/test_bucket_jobs.py": "spark jobs",
    "tests/pipeline/test_pipeline_page.py": "spark jobs",
    "tests/pipeline/test_replay_and_ingest.py": "spark jobs",
    "tests/pipeline/test_handovers.py": "spark kills",
    "tests/pipeline/test_kills.py": "spark kills",
    "tests/endtoend/test_make_up.py": "make up",
    "tests/compatibility/test_clients.py": "clients",
}
#: Files whose tests are long and share nothing: each test goes to whichever process is free.
SCATTERED = (
    "tests/chaos/test_storms.py",
    "tests/chaos/test_power.py",
    "tests/chaos/test_upgrade.py",
    "tests/endtoend/test_bench.py",
    "tests/unit/rules/test_simulation.py",
)
#: The groups and files that take longest, the longest first.
LONGEST = (
    "tests/chaos/test_storms.py",
    "spark kills",
    "spark jobs",
    "spark",
    "tests/endtoend/test_bench.py",
    "tests/chaos/test_upgrade.py",
    "tests/pipeline/test_cluster.py",
    "tests/pipeline/test_examples.py",
    "tests/chaos/test_power.py",
    "tests/chaos/test_year.py",
    "tests/integration/push/test_blocked_keys.py",
    "tests/endtoend/test_replica.py",
    "tests/endtoend/test_move.py",
    "tests/endtoend/test_guide_commands.py",
    "tests/integration/pipeline/test_two_archivers.py",
    "tests/integration/push/test_region_redis.py",
    "tests/integration/api/test_outages.py",
    "tests/integration/push/test_redis_outages.py",
    "tests/integration/push/test_redis_cluster.py",
    "tests/integration/push/test_redis_cluster_tls.py",
    "tests/integration/push/test_sentinel.py",
    "tests/integration/push/test_injected_faults.py",
    "tests/integration/test_outages.py",
    "tests/integration/rpc/test_outages.py",
    "tests/integration/admin/test_outages.py",
    "tests/integration/test_tasks_in_outages.py",
    "tests/integration/test_redis_variants.py",
    "tests/security/test_console.py",
    "tests/compatibility/test_receivers.py",
    "tests/integration/push/test_delivery.py",
    "tests/integration/push/test_outages.py",
    "tests/integration/backlog/test_cells.py",
    "tests/integration/rpc/test_grpc.py",
    "tests/endtoend/test_peers.py",
    "tests/unit/runtime/test_processes.py",
    "tests/integration/push/test_late_acks.py",
    "tests/integration/push/test_authentication.py",
    "tests/integration/test_advisory.py",
    "tests/browser/test_accessibility.py",
    "tests/pipeline/test_rollup_crashes.py",
    "tests/pipeline/test_starting.py",
    "tests/integration/pipeline/test_subscription_reader.py",
    "clients",
    "make up",
    "tests/endtoend/test_emulator.py",
    "tests/endtoend/test_pgbouncer.py",
    "tests/security/test_offers.py",
    "tests/browser/test_console_flows.py",
    "tests/browser/test_guide.py",
    "tests/integration/api/test_fuzz.py",
    "tests/endtoend/test_compose.py",
    "tests/integration/api/test_openapi.py",
    "tests/browser/test_console_pages.py",
    "tests/endtoend/test_spark_install.py",
    "tests/compatibility/test_streaming.py",
    "tests/compatibility/test_celery.py",
    "tests/unit/rules/test_simulation.py",
    "tests/integration/diagnosis/test_broken_set_ups.py",
    "tests/integration/push/test_flower.py",
    "tests/security/test_existence.py",
    "tests/integration/push/test_ordering.py",
    "tests/integration/backlog/test_rules_lua.py",
    "tests/security/test_transforms.py",
    "tests/security/test_front_door.py",
    "tests/endtoend/test_package.py",
    "tests/integration/test_backup.py",
    "tests/integration/push/test_stock_worker.py",
    "tests/integration/push/test_bytes.py",
    "tests/integration/push/test_wipes.py",
    "tests/integration/admin/test_subscription_form.py",
    "tests/integration/admin/test_resources.py",
    "tests/integration/pull/test_pull.py",
    "tests/integration/api/test_subscriptions.py",
    "tests/integration/retention/test_snapshots.py",
    "tests/integration/push/test_worker_survives.py",
    "tests/integration/rpc/test_ordered_streams.py",
    "tests/security/test_tenants.py",
    "tests/security/test_originals.py",
    "tests/integration/push/test_frozen_workers.py",
    "tests/integration/publish/test_one_way.py",
)
#: Those that compute for less than a third of their time: they wait for a lapse, an outage, or a process that starts.
WAITING = frozenset(
    {
        "tests/chaos/test_storms.py",
        "tests/chaos/test_year.py",
        "tests/integration/backlog/test_redis_cluster.py",
        "tests/integration/push/test_authentication.py",
        "tests/integration/push/test_dead_letters.py",
        "tests/integration/push/test_delivery.py",
        "tests/integration/push/test_flower.py",
        "tests/integration/push/test_frozen_workers.py",
        "tests/integration/push/test_injected_faults.py",
        "tests/integration/push/test_late_acks.py",
        "tests/integration/push/test_outages.py",
        "tests/integration/push/test_redis_cluster.py",
        "tests/integration/push/test_redis_outages.py",
        "tests/integration/push/test_remote_control.py",
        "tests/integration/push/test_sentinel.py",
        "tests/integration/push/test_stock_worker.py",
        "tests/integration/push/test_unwrapped_push.py",
        "tests/integration/push/test_wipes.py",
        "tests/integration/push/test_worker_survives.py",
        "tests/integration/rpc/test_grpc.py",
        "tests/integration/rpc/test_idle_connections.py",
        "tests/unit/runtime/test_httpserver.py",
    }
)
#: As many processes as this prefer tests that compute; the others, those that wait.
COMPUTING_PROCESSES = os.cpu_count() or 1
WAITING_PROCESSES = 2


def group_of(nodeid: str) -> str:
    path = nodeid.partition("::")[0]
    return nodeid if path in SCATTERED else GROUPS.get(path, path)


def ordered(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests by group: the longest groups first, then those with the most tests."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(group_of(item.nodeid), []).append(item)
    ranks = {group: rank for rank, group in enumerate(LONGEST)}

    def rank(group: str) -> tuple[int, int]:
        return ranks.get(group.partition("::")[0], len(ranks)), -len(groups[group])

    first = sorted(groups, key=rank)
    return [item for group in first for item in groups[group]]


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Sends the tests of a group to one process; --no-loadscope-reorder keeps the order of `ordered`.

    Some processes prefer tests that compute, and the others those that wait: if all of them waited at once, the cores
    would be idle.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        prefers_waiting = self.nodes.index(node) >= COMPUTING_PROCESSES
        preferred = (group for group in self.workqueue if (group.partition("::")[0] in WAITING) == prefers_waiting)
        if group := next(preferred, None):
            self.workqueue.move_to_end(group, last=False)
        super()._assign_work_unit(node)
