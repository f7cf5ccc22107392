"""Two machines with journals of their own and one bucket: one dies, and nothing is counted twice or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveries.models import Segment, ShippedSegment
from tests.objectstores import BUCKET, STORES
from tests.pipeline.ground import assert_counted, make_segments
from tests.ports import free_port, wait_for
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

#: A machine whose tasks come often. What its killed worker held is free a second later.
MACHINE = """
import socket
socket.gethostname = lambda: {name!r}
from pushhub import beat, celery, leases
leases.LEASE_SECONDS = beat.LEASE_SECONDS = 1.0
beat.LOOK_SECONDS = 0.1
names = ("segments-ship", "segments-count")
celery.app.conf.beat_schedule = {{name: celery.app.conf.beat_schedule[name] | {{"schedule": 0.3}} for name in names}}
"""


def test_the_segments_of_two_machines_are_counted_once_although_one_dies(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, port = STORES[0], free_port()
    for name, value in kind.environment(port).items():
        monkeypatch.setenv(name, value)
    # Given a bucket, and two machines with segments of their own, which they ship and count
    numbers = {"a": range(6), "b": range(100, 106)}
    paths = {name: make_segments(tmp_path / "copies", numbers[name], seed=len(name)) for name in numbers}

    def put(name: str, count: int) -> None:
        """Seal segments into the journal of a machine."""
        for path in paths[name][:count]:
            target = tmp_path / name / path.relative_to(tmp_path / "copies")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())

    def machine(name: str) -> Worker:
        return Worker(
            redis_url,
            name=f"maintenance-{name}",
            queue="maintenance",
            beat=True,
            first=MACHINE.format(name=name),
            PUSHHUB_JOURNAL=str(tmp_path / name),
            PUSHHUB_JOURNAL_BUCKET=f"{kind.scheme}://{BUCKET}/journal",
        )

    put("a", 3)
    put("b", 6)
    with kind.server(port):
        with machine("a") as first, machine("b"):
            wait_for(ShippedSegment.objects.exists, what="a segment in the bucket")
            # When one dies, with segments that it has not shipped, and some of which the bucket may have
            first.kill()
            put("a", 6)
            # Then the other one ships its own and counts all in the bucket
            wait_for(lambda: Segment.objects.filter(name__in=[path.name for path in paths["b"]]).count() == 6)
        # And the rest is counted when the machine is back
        with machine("a"):
            wait_for(lambda: Segment.objects.filter(state="counted").count() == 12, what="all segments")
    assert_counted([*paths["a"], *paths["b"]])
