"""What the tasks of a replay or an ingest publish is counted before they end: Spark kills their processes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from deliveries.backlog.default import default_backlog
from deliveries.models import PublishJob, PublishPart
from deliveries.pipeline.publishing.parts import Task, publish
from deliveries.pipeline.service import Service
from deliveries.telemetry.sinks import counters
from subscriptions.models import Project, Topic

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_counters_of_a_task_are_in_redis_when_it_ends(metrics_on: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "FLUSH_SECONDS", 3600.0)
    topic = Topic.objects.create(project=Project.objects.create(project_id="shop", number=1), topic_id="orders")
    job = PublishJob.objects.create(job_id="one", kind="ingest", spec={})
    PublishPart.objects.create(job=job, number=0)
    columns = {"part": [0, 0], "position": [1, 2], "data": [b"one", b"two"]}
    batch = pa.record_batch({**columns, "attributes": [{}, {}], "ordering_key": ["", ""]})

    list(publish(iter([batch]), task=Task(Service({}), job.pk, topic.pk, None, 0)))

    counted = {value.kind.field: value.value for value in counters.read_counters(default_backlog().clients)}
    assert counted["topic_send_message_operation_count"] == 2
