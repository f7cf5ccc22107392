"""Measures the console's pages over many rows: the time that the server spends on each, and its queries.

    python -m bench.console                      10,000 subscriptions, 1,000,000 waiting messages, 10,000,000 attempts
    python -m bench.console --postgresql         the same on a throw-away PostgreSQL
    python -m bench.console --replica            the same on one with a standby, which the pages read
    python -m bench.console --scale 0.01         a hundredth of all rows, to try the script

It fills a database, a journal and a Redis of its own, about 1 GB on the disk, and removes them at the end. Times are
those of Django's test client in this process: everything that a request costs but the connection. A page is SLOW by its
CPU time, that of PostgreSQL included, as others may be at work on the machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.__main__ import prepare_django
from bench.consolerows import BUSY, PROJECT, fill, is_sqlite, take_gauges
from bench.postgresql import postgresql, standby_of
from bench.processes import BenchError

if TYPE_CHECKING:
    from django.test import Client

ROUNDS = 3
#: The pages that a viewer may not open: an editor gets no policies, and segments belong to no project.
FOR_SUPERUSERS = frozenset({"subscription, permissions", "segments"})
LIMIT_MS = 200.0
#: How often a live page asks: the share of a core that one viewer costs is the time of a request over this.
LIVE_SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.console", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--postgresql", action="store_true")
    parser.add_argument("--replica", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, metavar="SHARE")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.postgresql or options.replica:
            url = os.environ["PUSHHUB_DATABASE_URL"] = stack.enter_context(postgresql())
        more = {"PUSHHUB_REPLICA_URL": stack.enter_context(standby_of(url))} if options.replica else {}
        folder_of_settings = stack.enter_context(tempfile.TemporaryDirectory(prefix="pushhub-bench-"))
        prepare_django(folder_of_settings, on_postgresql=options.postgresql or options.replica, **more)
        from bench.stand import stand

        folder = stack.enter_context(stand()).folder
        fill(folder, scale=options.scale)
        return measure()


def pages() -> dict[str, str]:
    """Return the addresses to measure, by name."""
    from deliveries.models import Message
    from subscriptions.models import Subscription, Topic

    busy, topic = Subscription.objects.get(subscription_id=BUSY), Topic.objects.earliest("pk")
    message = Message.objects.order_by("pk")[100].pk
    charts = f"deliveries/segment/charts/{busy.pk}/"
    return {
        "overview": "",
        "overview, live": "deliveries/delivery/overview/",
        "topics": "subscriptions/topic/",
        "topic": f"subscriptions/topic/{topic.pk}/change/",
        "subscriptions": "subscriptions/subscription/",
        "subscriptions, search": "subscriptions/subscription/?q=sub-77",
        "subscriptions, by waiting": "subscriptions/subscription/?o=-3",
        "subscriptions, failing": "subscriptions/subscription/?health=failing",
        "subscription, live": f"deliveries/delivery/state/{busy.pk}/live/",
        "subscription": f"deliveries/delivery/state/{busy.pk}/",
        "subscription, messages": f"deliveries/delivery/waiting/{busy.pk}/",
        "subscription, configuration": f"subscriptions/subscription/{busy.pk}/change/",
        "subscription, permissions": f"subscriptions/policy/of/{busy.name}/",
        "subscription, history": f"subscriptions/auditentry/?q={busy.name}",
        "charts, hour": f"{charts}?range=1h&compare=week",
        "charts, day": f"{charts}?range=24h&compare=week",
        "charts, week": f"{charts}?range=7d&compare=week",
        "charts, month": f"{charts}?range=30d&compare=week",
        "waiting deliveries": "deliveries/delivery/",
        "waiting deliveries, last page": "deliveries/delivery/?p=200",
        "waiting deliveries, filter": "deliveries/delivery/?last_result=404",
        "messages": "deliveries/message/",
        "messages, attribute that many have": "deliveries/message/?q=color%3Dred",
        "messages, attribute that none has": "deliveries/message/?q=color%3Dblue",
        "messages, ordering key": "deliveries/message/?q=customer-7",
        "message": f"deliveries/message/way/{message}/",
        "dead letters": "deliveries/deadletter/",
        "dead letters of one subscription": f"deliveries/deadletter/of/{busy.pk}/",
        "segments": "deliveries/segment/",
        "snapshots": "subscriptions/snapshot/",
        "projects": "subscriptions/project/",
        "policies": "subscriptions/policy/",
        "new subscription": "subscriptions/subscription/add/",
    }


@dataclass(frozen=True, slots=True)
class Cost:
    """What a page costs: the server's time, its CPU time with that of the database, the primary's part, and queries."""

    wall_ms: float
    cpu_ms: float
    primary_ms: float
    queries: int


def measure() -> int:
    """Print the time and the queries of each page, for a superuser and for a viewer; return 1 if one is too slow."""
    from pushhub.common.replica import export

    slow = 0
    for reader, client in readers().items():
        print(f"{reader:36} {'ms':>8} {'CPU ms':>8} {'primary':>8} {'queries':>8}")
        take_gauges()
        export(lambda _: None)  # waits for a replica
        for name, path in pages().items():
            if reader == "viewer" and name in FOR_SUPERUSERS:
                continue
            cost = page_cost(client, f"/admin/{path}")
            slow += cost.cpu_ms > LIMIT_MS
            share = f"  {cost.cpu_ms / 10 / LIVE_SECONDS:.2f} % of a core a viewer" if name.endswith(", live") else ""
            mark = "  SLOW" if cost.cpu_ms > LIMIT_MS else ""
            figures = f"{cost.wall_ms:8.1f} {cost.cpu_ms:8.1f} {cost.primary_ms:8.1f} {cost.queries:8}"
            print(f"  {name:34} {figures}{share}{mark}", flush=True)
    return 1 if slow else 0


def readers() -> dict[str, Client]:
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    from subscriptions.iam import grants
    from subscriptions.models import Project

    readers = {}
    for name, is_superuser in (("superuser", True), ("viewer", False)):
        user = User.objects.create(username=name, email=f"{name}@example.com", is_staff=True, is_superuser=is_superuser)
        user.user_permissions.set(Permission.objects.all())
        readers[name] = Client(headers={"host": "localhost"})
        readers[name].force_login(user)
    project = Project.objects.get(project_id=PROJECT)
    grants.grant_role(project, role="roles/editor", member="user:viewer@example.com")
    return readers


def page_cost(client: Client, address: str) -> Cost:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    response = client.get(address, follow=True)
    if response.status_code != 200:
        raise BenchError(f"{address} answers {response.status_code}")
    rounds = []
    for _ in range(ROUNDS):
        began, began_cpu = time.perf_counter(), _cpu_seconds()
        client.get(address)
        cpu = [now - before for now, before in zip(_cpu_seconds(), began_cpu, strict=True)]
        rounds.append((time.perf_counter() - began, sum(cpu), cpu[1]))
    with CaptureQueriesContext(connection) as queries:
        client.get(address)
    # The shortest: others may be at work on the machine.
    return Cost(*(1000 * min(seconds) for seconds in zip(*rounds, strict=True)), len(queries))


def _cpu_seconds() -> list[float]:
    """Return the CPU times of this process, and of the processes of the primary and a replica that serve it."""
    from django.db import connections

    seconds = [time.process_time(), 0.0, 0.0]
    if not is_sqlite():
        for place, alias in enumerate(connections, 1):
            connection = connections[alias]
            connection.ensure_connection()
            stat = Path(f"/proc/{connection.connection.info.backend_pid}/schedstat").read_text(encoding="ascii")
            seconds[place] = int(stat.split()[0]) / 1e9
    return seconds


if __name__ == "__main__":
    sys.exit(main())
