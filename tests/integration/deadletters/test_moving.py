"""Dead letters are listed until they are settled; a redrive returns each dead letter to its own subscription once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from deliveries.deadletters import jobs, listing, moving
from deliveries.deadletters.moving import Action, move_letters
from deliveries.models import DeadLetter, DeadLetterJob, Delivery, Message
from deliveries.retention import sweep
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import grants
from subscriptions.models import Subscription
from subscriptions.models.iam import AuditEntry
from tests.integration.deadletters.letters import LETTERS, create_letters, create_source, owed_to, pull_messages
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

ADA = Principal("user:ada@example.com")
POLICY = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}


def test_a_push_that_fails_for_good_is_listed_with_its_reason(api: Api, redis_url: str) -> None:
    with Receiver(default=503) as receiver, Worker(redis_url):
        quick = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
        source = create_source(api, pushConfig={"pushEndpoint": receiver.url}, retryPolicy=quick)
        api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
        wait_for(lambda: DeadLetter.objects.exists(), what="the dead letter")
    [summary] = listing.summaries(None)
    assert (summary.subscription_id, summary.count, summary.max_attempts) == (source.pk, 1, 5)
    assert summary.reasons == [("503", 1)]


def test_a_redrive_returns_the_original_message_and_removes_it_from_the_dead_letter_topic(api: Api) -> None:
    source = create_source(api)
    api.create("subscriptions/other", {"topic": source.topic.name})  # type: ignore[union-attr]
    attributes = {"lang": "en", "CloudPubSubDeadLetterSourceSubscription": "older"}
    [letter] = create_letters(api, source, 1, attributes=attributes, orderingKey="k")
    assert owed_to("worker") == []
    assert move_letters(source, [letter], action=Action.REDRIVE, caller=OPERATOR) == 1
    [delivery] = Delivery.objects.filter(subscription=source).select_related("message")
    assert bytes(delivery.message.data) == b"0"
    assert delivery.message.ordering_key == "k"
    assert api_attributes(delivery.message) == attributes
    assert delivery.attempts == 0
    assert owed_to("other") == ["0"], "the other subscription of the topic gets no second copy"
    assert pull_messages(api, "reader") == []
    assert not DeadLetter.objects.exists()
    assert move_letters(source, [letter], action=Action.REDRIVE, caller=OPERATOR) == 0
    assert owed_to("worker") == ["0"]


def api_attributes(message: Message) -> dict[str, str]:
    from deliveries.rules.payload import parse_attributes

    return parse_attributes(message.attributes)


def test_discarded_dead_letters_are_deleted_and_the_audit_log_has_an_entry(api: Api) -> None:
    source = create_source(api)
    first, second = create_letters(api, source, 2)
    assert move_letters(source, [first], action=Action.DISCARD, caller=OPERATOR) == 1
    assert owed_to("worker") == []
    assert owed_to("reader") == ["1"]
    assert list(DeadLetter.objects.values_list("message_id", flat=True)) == [second]
    entry = AuditEntry.objects.get(action="DiscardDeadLetters")
    assert (entry.resource, entry.after) == (source.name, {"messages": 1})


def test_subscriptions_of_the_dead_letter_topic_that_the_caller_may_not_pull_from_keep_their_copy(api: Api) -> None:
    source = create_source(api)
    api.create("subscriptions/foreign", {"topic": LETTERS})
    for name in ("worker", "reader"):
        row = Subscription.objects.get(subscription_id=name)
        grants.grant_role(row, role="roles/pubsub.subscriber", member=ADA.member)
    [letter] = create_letters(api, source, 1)
    move_letters(source, [letter], action=Action.REDRIVE, caller=ADA)
    assert (owed_to("worker"), owed_to("reader"), owed_to("foreign")) == (["0"], [], ["0"])


def test_a_dead_letter_that_a_subscriber_acknowledges_is_no_longer_listed(api: Api) -> None:
    source = create_source(api)
    letters = create_letters(api, source, 2)
    [received] = pull_messages(api, "reader", 1)
    api.post("subscriptions/reader:acknowledge", {"ackIds": [received["ackId"]]})
    [unsettled_id] = listing.unsettled(source).values_list("message_id", flat=True)
    assert move_letters(source, letters, action=Action.REDRIVE, caller=OPERATOR) == 1
    assert unsettled_id == max(letters)
    assert owed_to("worker") == ["1"]


def test_the_sweep_forgets_acknowledged_dead_letters_only(api: Api) -> None:
    source = create_source(api)
    create_letters(api, source, 2)
    [received] = pull_messages(api, "reader", 1)
    api.post("subscriptions/reader:acknowledge", {"ackIds": [received["ackId"]]})
    assert listing.sweep_settled() == 0
    assert DeadLetter.objects.count() == 1


def test_a_dead_letter_topic_without_a_subscription_loses_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep of settled messages keeps a dead letter until its retention is over; then both sweeps remove it."""
    source = create_source(api, has_reader=False)
    [letter] = create_letters(api, source, 1)
    monkeypatch.setattr(sweep, "SETTLED_GRACE_MS", -60_000)
    sweep.sweep_settled()
    listing.sweep_settled()
    assert Message.objects.filter(pk=letter).exists()
    assert move_letters(source, [letter], action=Action.REDRIVE, caller=OPERATOR) == 1
    assert owed_to("worker") == ["0"]
    [letter] = create_letters(api, source, 1)
    Subscription.objects.filter(pk=source.pk).update(message_retention_seconds=0)
    wait_for(lambda: listing.sweep_settled() == 0 and not DeadLetter.objects.exists(), what="the end of its retention")
    sweep.sweep_settled()
    assert not Message.objects.filter(pk=letter).exists()


def test_a_redrive_that_cannot_be_delivered_changes_nothing(api: Api) -> None:
    source = create_source(api)
    letters = create_letters(api, source, 2)
    api.post("subscriptions/worker:detach", {})
    source = Subscription.objects.select_related("project", "topic__project").get(pk=source.pk)
    for move in (
        lambda: move_letters(source, letters, action=Action.REDRIVE, caller=OPERATOR),
        lambda: jobs.begin_job(source, action=Action.REDRIVE, rate=1, caller=OPERATOR),
    ):
        with pytest.raises(FailedPrecondition, match="detached"):
            move()
    assert sorted(owed_to("reader")) == ["0", "1"]
    assert DeadLetter.objects.count() == 2
    assert move_letters(source, letters, action=Action.DISCARD, caller=OPERATOR) == 2


def test_a_dead_letter_that_no_longer_passes_the_filter_stays(api: Api) -> None:
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    Subscription.objects.filter(pk=source.pk).update(filter='attributes.lang = "en"')
    with pytest.raises(FailedPrecondition, match="filter"):
        move_letters(source, [letter], action=Action.REDRIVE, caller=OPERATOR)
    assert (owed_to("worker"), owed_to("reader")) == ([], ["0"])
    assert DeadLetter.objects.count() == 1


def test_what_was_moved_before_a_failure_is_in_the_audit_log(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create_source(api)
    passing = create_letters(api, source, 1, attributes={"lang": "en"})
    letters = [*passing, *create_letters(api, source, 1)]
    Subscription.objects.filter(pk=source.pk).update(filter='attributes.lang = "en"')
    monkeypatch.setattr(moving, "BATCH", 1)
    with pytest.raises(FailedPrecondition, match="filter"):
        move_letters(source, letters, action=Action.REDRIVE, caller=OPERATOR)
    assert owed_to("worker") == ["0"]
    assert AuditEntry.objects.get(action="RedriveDeadLetters").after == {"messages": 1}


class Ticks:
    """A clock that a test moves, and that advances the jobs with each move."""

    def __init__(self) -> None:
        self.now = utcnow()

    def __call__(self) -> Any:
        return self.now

    def later(self, seconds: float) -> int:
        self.now += timedelta(seconds=seconds)
        return jobs.advance_jobs(clock=self)


def test_a_job_moves_all_at_its_rate_and_leaves_later_dead_letters(api: Api) -> None:
    source = create_source(api)
    create_letters(api, source, 7)
    ticks = Ticks()
    job = jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR)
    [later_id] = create_letters(api, source, 1)
    assert [ticks.later(1), ticks.later(1), ticks.later(1.5)] == [2, 2, 3]
    ticks.later(1)
    job.refresh_from_db()
    assert (job.total, job.done, job.failure) == (7, 7, "")
    assert job.finished_at is not None
    assert owed_to("worker") == ["0", "1", "2", "3", "4", "5", "6"]
    assert list(DeadLetter.objects.values_list("message_id", flat=True)) == [later_id]


def test_a_job_keeps_its_rate_on_average(api: Api) -> None:
    source = create_source(api)
    create_letters(api, source, 9)
    ticks = Ticks()
    jobs.begin_job(source, action=Action.DISCARD, rate=1, caller=OPERATOR)
    assert [ticks.later(seconds) for seconds in (1, 1.75, 1.75, 0.5, 1.75)] == [1, 1, 2, 1, 1]


def test_a_job_for_chosen_dead_letters_moves_only_those_at_its_rate(api: Api) -> None:
    source = create_source(api)
    letters = create_letters(api, source, 5)
    settled_id = letters[4]
    move_letters(source, [settled_id], action=Action.DISCARD, caller=OPERATOR)
    chosen_ids = [letters[3], letters[1], letters[1], letters[0], settled_id, 7]
    job = jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR, chosen_ids=chosen_ids)
    assert job.total == 3
    ticks = Ticks()
    assert [ticks.later(1), ticks.later(1), ticks.later(1)] == [2, 1, 0]
    job.refresh_from_db()
    assert (job.done, job.failure, job.finished_at is not None) == (3, "", True)
    assert owed_to("worker") == ["0", "1", "3"]
    assert list(DeadLetter.objects.values_list("message_id", flat=True)) == [letters[2]]
    with pytest.raises(FailedPrecondition, match="no dead letters"):
        jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR, chosen_ids=[settled_id])


def test_a_job_survives_a_crash_between_any_two_steps(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the process dies before a commit, or after it and before Redis is told, each message still comes back once."""
    source = create_source(api)
    create_letters(api, source, 6)
    job = jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR)
    ticks = Ticks()
    save = DeadLetterJob.save
    with monkeypatch.context() as broken:
        broken.setattr(DeadLetterJob, "save", _die)
        with pytest.raises(ZeroDivisionError):
            ticks.later(1)
    assert DeadLetterJob.save is save
    assert owed_to("worker") == []
    with monkeypatch.context() as broken:
        broken.setattr("deliveries.deadletters.moving.Moved.announce_all", _die)
        with pytest.raises(ZeroDivisionError):
            ticks.later(1)
    for _ in range(4):
        ticks.later(1)
    job.refresh_from_db()
    assert job.done == 6
    assert owed_to("worker") == ["0", "1", "2", "3", "4", "5"]
    assert owed_to("reader") == []


def _die(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


def test_a_job_that_fails_keeps_no_other_from_its_turn(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create_source(api)
    api.create("subscriptions/second", {"topic": source.topic.name, "deadLetterPolicy": POLICY})  # type: ignore[union-attr]
    second = Subscription.objects.select_related("project", "topic__project").get(subscription_id="second")
    for each in (source, second):
        create_letters(api, each, 1)
    jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR)
    jobs.begin_job(second, action=Action.DISCARD, rate=2, caller=OPERATOR)
    monkeypatch.setattr(moving, "check_redrivable", _die)
    with pytest.raises(ZeroDivisionError):
        Ticks().later(1)
    assert list(DeadLetter.objects.values_list("subscription", flat=True)) == [source.pk]


def test_a_job_can_be_stopped_and_only_one_runs_at_a_time(api: Api) -> None:
    source = create_source(api)
    create_letters(api, source, 5)
    jobs.begin_job(source, action=Action.DISCARD, rate=2, caller=OPERATOR)
    with pytest.raises(FailedPrecondition, match="already"):
        jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR)
    ticks = Ticks()
    ticks.later(1)
    assert jobs.stop_job(source)
    assert not jobs.stop_job(source)
    ticks.later(5)
    assert DeadLetter.objects.count() == 3
    with pytest.raises(InvalidArgument) as refused:
        jobs.begin_job(source, action=Action.REDRIVE, rate=0, caller=OPERATOR)
    assert refused.value.field == "messagesPerSecond"


def test_only_the_latest_job_of_a_subscription_is_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a tick that has read an earlier one moves nothing for it."""
    source = create_source(api)
    create_letters(api, source, 2)
    earlier = jobs.begin_job(source, action=Action.DISCARD, rate=2, caller=OPERATOR)

    def authorize(*_: Any) -> None:
        monkeypatch.undo()
        jobs.stop_job(source)
        jobs.begin_job(source, action=Action.REDRIVE, rate=2, caller=OPERATOR)

    monkeypatch.setattr(jobs, "authorize", authorize)
    assert jobs.advance_jobs(clock=lambda: earlier.created_at) == 0
    assert DeadLetterJob.objects.get().action == Action.REDRIVE
    assert len(owed_to("reader")) == 2


def test_a_job_ends_when_its_owner_loses_the_permission(api: Api) -> None:
    source = create_source(api)
    create_letters(api, source, 3)
    grants.grant_role(source, role="roles/pubsub.subscriber", member=ADA.member)
    job = jobs.begin_job(source, action=Action.REDRIVE, rate=1, caller=ADA)
    ticks = Ticks()
    assert ticks.later(1) == 1
    grants.revoke_role(source, role="roles/pubsub.subscriber", member=ADA.member)
    assert ticks.later(1) == 0
    job.refresh_from_db()
    assert "pubsub.subscriptions.consume" in job.failure
    assert len(owed_to("worker")) == 1


def test_large_dead_letters_are_moved_in_small_transactions(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create_source(api)
    letters = create_letters(api, source, 4)
    monkeypatch.setattr(moving, "BATCH_BYTES", 2 * 250)
    sizes = [len(batch) for batch in moving.batches(letters)]
    assert sum(sizes) == 4
    assert max(sizes) <= 2
