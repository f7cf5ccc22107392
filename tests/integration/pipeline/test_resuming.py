"""A partition of a frame that is published again: no message is left out, whatever rows it has the second time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deliveries.models import Message, PublishPart
from deliveries.pipeline.publishing import resuming
from deliveries.pipeline.publishing.parts import Pace, Task, publish_part
from deliveries.pipeline.publishing.publishjobs import begin_job
from deliveries.pipeline.service import Service
from subscriptions.selectors import get_topic
from subscriptions.services.topics import create_topic

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


class KilledError(Exception):
    """Stands for the death of a task's process."""


@pytest.fixture
def task(redis_url: str) -> Task:
    create_topic(name=TOPIC, topic={})
    job = begin_job(job_id="stream q 1", kind="stream", spec={"topic": TOPIC})
    return Task(Service({}), job.pk, get_topic(name=TOPIC).pk, None, 0, is_open=True)


class Batches:
    """The pace of a task that publishes two rows at a time, and is killed after some of these batches."""

    size = 2

    def __init__(self, *, killed_after: int | None = None) -> None:
        self._killed_after = killed_after

    def wait(self, done: int) -> None:
        if self._killed_after is not None and done >= self._killed_after * self.size:
            raise KilledError


def run(task: Task, rows: Sequence[str], *, killed_after: int | None = None) -> None:
    """Publish a partition with these rows."""
    columns = {"data": [row.encode() for row in rows], "attributes": [[("row", row)] for row in rows]}
    pace: Pace = Batches(killed_after=killed_after)  # type: ignore[assignment]
    publish_part([(0, columns, index) for index in range(len(rows))], task=task, number=0, pace=pace, done=0)


def run_and_kill(task: Task, rows: Sequence[str], *, after: int) -> None:
    with pytest.raises(KilledError):
        run(task, rows, killed_after=after)


def published() -> str:
    return "".join(bytes(message.data).decode() for message in Message.objects.order_by("id"))


def test_a_partition_with_the_same_rows_is_continued(task: Task) -> None:
    run_and_kill(task, "abcdefg", after=2)
    assert published() == "abcd"
    run(task, "abcdefg")
    run(task, "abcdefg")
    assert published() == "abcdefg"
    assert {message.attributes for message in Message.objects.filter(data=b"a")} == {'{"row":"a"}'}


@pytest.mark.parametrize("memory", [0, resuming.MEMORY_BYTES])
@pytest.mark.parametrize("rows", ["xyzuvw", "abcx", "acbdefg", "ab", ""])
def test_a_partition_that_begins_with_other_rows_is_published_as_a_whole(
    task: Task, rows: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resuming, "MEMORY_BYTES", memory)
    run_and_kill(task, "abcdefg", after=2)
    run(task, rows)
    assert published() == "abcd" + rows
    run(task, rows)
    assert published() == "abcd" + rows, "the same rows are not published again"


def test_rows_that_differ_only_in_their_attributes_are_other_rows(task: Task) -> None:
    run_and_kill(task, "aaaa", after=1)
    columns = {"data": [b"a"] * 4, "attributes": [[("row", "other")]] * 4}
    publish_part([(0, columns, index) for index in range(4)], task=task, number=0, pace=Pace(0), done=0)
    assert published() == "aaaaaa"


def test_a_partition_that_an_older_release_began_is_continued(task: Task) -> None:
    run_and_kill(task, "abcdefg", after=2)
    PublishPart.objects.update(fingerprint="")
    run(task, "abcdefg")
    assert published() == "abcdefg"


def test_one_of_two_attempts_that_restart_a_part_fails(task: Task) -> None:
    run_and_kill(task, "abcdefg", after=2)
    part = PublishPart.objects.get()
    PublishPart.objects.update(position=6)
    with pytest.raises(RuntimeError, match="another attempt"):
        list(resuming.messages_left(iter(()), part, resuming.Fingerprint()))
