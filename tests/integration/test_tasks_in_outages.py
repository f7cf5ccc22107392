"""Whatever call of a timed task to the database or Redis fails, the task fails with that error, and succeeds later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.pull.leasing import pull_messages
from deliveries.rules.payload import NewMessage
from pushhub.celery import app
from pushhub.common.outages import outage_of
from subscriptions.models import Topic
from subscriptions.selectors import read_subscription
from tests.faults import Faults, outage_errors
from tests.tenants import world_of_tenants

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

#: These have something to do only with a journal, which tests/integration/pipeline is about, or start a process.
LEFT_OUT = {f"deliveries.{name}" for name in ("journals_seal", "segments_ship", "segments_count", "archive_start")}
TASKS = sorted({str(entry["task"]) for entry in app.conf.beat_schedule.values()} - LEFT_OUT)


@pytest.fixture
def busy(redis_url: str) -> Callable[[], None]:
    """Return what gives each task something to do."""
    app.loader.import_default_modules()
    world_of_tenants()

    def publish_and_lease() -> None:
        topic = Topic.objects.get(topic_id="acme-topic")
        subscription = read_subscription(name="projects/acme/subscriptions/acme-subscription")
        subscription.push_endpoint = ""
        subscription.save()
        publish_message(topic=topic, messages=[NewMessage(b"x", {})] * 3)
        pull_messages(subscription=subscription, max_messages=1)

    return publish_and_lease


@pytest.mark.parametrize("name", TASKS)
def test_a_call_that_fails_fails_its_task_only(
    busy: Callable[[], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    task = app.tasks[name].run
    faults = Faults(monkeypatch)
    busy()
    for _ in range(2):
        with faults.at():
            task()
    assert faults.owners
    for number in range(len(faults.owners)):
        busy()
        with faults.at(number, **outage_errors(number)):
            try:
                task()
            except Exception as error:
                assert outage_of(error), (number, faults.owners)
    task()
    assert Delivery.objects.count() > 3
