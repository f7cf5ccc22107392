"""Migrations that carry data over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

pytestmark = pytest.mark.django_db(transaction=True)

Migrate = Callable[[str], Any]


@pytest.fixture
def migrate() -> Iterator[Migrate]:
    """Return a function that migrates the tables of `deliveries` and returns the models of that migration."""

    def to(name: str) -> Any:
        executor = MigrationExecutor(connection)
        return executor.migrate([("deliveries", name)]).apps

    [latest] = [name for app, name in MigrationExecutor(connection).loader.graph.leaf_nodes() if app == "deliveries"]
    yield to
    to(latest)


def test_jobs_from_before_parts_existed_continue_where_they_were(migrate: Migrate) -> None:
    """Otherwise a replay that is resumed after the upgrade would publish messages a second time under its id."""
    jobs = migrate("0006_publish_jobs").get_model("deliveries", "PublishJob").objects
    spec = {"topic": "projects/shop/topics/orders", "subscription": "projects/shop/subscriptions/push"}
    jobs.create(job_id="replay", kind="replay", spec=spec, position=7, published=3, rejected=0)
    jobs.create(
        job_id="ingest", kind="ingest", spec={}, position=9, published=5, rejected=4, finished_at=timezone.now()
    )
    apps = migrate("0009_publish_parts_alone")
    parts = apps.get_model("deliveries", "PublishPart").objects
    columns = ("number", "position", "until", "published", "rejected", "finished")
    assert parts.filter(job__job_id="replay").values_list(*columns).get() == (0, 7, 2**63 - 1, 3, 0, False)
    assert parts.filter(job__job_id="ingest").values_list(*columns).get() == (0, 9, None, 5, 4, True)
    replay = apps.get_model("deliveries", "PublishJob").objects.get(job_id="replay")
    assert (replay.parts, replay.spec["topic"], replay.spec["subscription"]) == (1, "", spec["subscription"])
