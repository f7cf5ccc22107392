"""Pulling with message ordering: many messages of a key at a time, and again in order after a nack or a lapse."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import redis

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import hear_of_elsewhere
from deliveries.backlog.reconcile import audit, rebuild
from deliveries.backlog.records import Lane
from deliveries.deadletters.settling import Settlement, settle_messages
from deliveries.models import Delivery, LostOffer, Message
from deliveries.publish.service import publish_message
from deliveries.pull.deadlines import give_back_leases, hand_over_keys, modify_ack_deadlines
from deliveries.pull.leases import ack_ids_ended, leases_by_origin, read_ack_ids
from deliveries.pull.leasing import Received, pull_messages
from deliveries.pull.settling import acknowledge_messages, forget_deliveries
from deliveries.retention.seeking import seek_subscription
from deliveries.rules.payload import NewMessage
from deliveries.store import statements
from pushhub.common.errors import InvalidArgument
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC, DEAD = "projects/shop/topics/orders", "projects/shop/topics/dead"


class Puller:
    """An ordered pull subscription, and one of its pullers."""

    def __init__(self, subscription: Subscription, name: str = "one") -> None:
        self.subscription = subscription
        self.name = name
        #: The last ack id of each message.
        self.ack_ids: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.ends_ms: dict[str, int] = {}

    def pull(self, count: int = 100) -> list[str]:
        received = pull_messages(subscription=self.subscription, max_messages=count, puller=self.name)
        texts = [text_of(message) for message in received]
        self.ack_ids |= dict(zip(texts, [message.ack_id for message in received], strict=True))
        self.attempts |= dict(zip(texts, [message.delivery_attempt for message in received], strict=True))
        self.ends_ms |= {message.ack_id: message.ends_ms for message in received}
        return texts

    def ack(self, *texts: str) -> None:
        acknowledge_messages(subscription=self.subscription, ack_ids=[self.ack_ids[text] for text in texts])

    def extend(self, seconds: int, *texts: str) -> None:
        ack_ids = [self.ack_ids[text] for text in texts]
        modify_ack_deadlines(subscription=self.subscription, ack_ids=ack_ids, seconds=seconds)

    def nack(self, *texts: str) -> None:
        self.extend(0, *texts)

    def give_back(self, *texts: str) -> None:
        ends_ms = {self.ack_ids[text]: self.ends_ms[self.ack_ids[text]] for text in texts}
        give_back_leases(subscription=self.subscription, ends_ms=ends_ms)

    def lapse(self, *texts: str) -> None:
        """Let these leases end now, as if their time had passed."""
        leases = read_ack_ids(self.subscription, [self.ack_ids[text] for text in texts])
        key = f"{Lane(self.subscription.pk, 'local').root}:l"
        default_backlog().client.zadd(key, {str(lease.message_id): 1 for lease in leases})


def text_of(received: Received) -> str:
    number = received.message["attributes"]["n"]
    return f"{received.message.get('orderingKey', '')}{number}"


def ordered(**fields: Any) -> Subscription:
    create_topic(name=TOPIC, topic={})
    create_topic(name=DEAD, topic={})
    name = "projects/shop/subscriptions/puller"
    return create_subscription(name=name, subscription={"topic": TOPIC, "enableMessageOrdering": True} | fields)


@pytest.fixture
def puller(redis_url: str) -> Puller:
    return Puller(ordered())


def publish(key: str, count: int, *, start: int = 1, size: int = 1) -> list[str]:
    topic = get_topic(name=TOPIC)
    numbers = range(start, start + count)
    publish_message(topic=topic, messages=[NewMessage(b"x" * size, {"n": str(number)}, key) for number in numbers])
    return [f"{key}{number}" for number in numbers]


def owed() -> int:
    return Delivery.objects.count()


def test_a_pull_hands_out_many_messages_of_a_key(puller: Puller) -> None:
    published = publish("k", 100)
    assert puller.pull(60) == published[:60]
    assert puller.pull(60) == published[60:]
    puller.ack(*published)
    assert owed() == 0


def test_a_backlog_longer_than_redis_holds_is_pulled_in_order(puller: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_backlog(), "limit", 20)
    published = publish("k", 150)
    seen: list[str] = []
    while texts := puller.pull(40):
        seen += texts
        puller.ack(*texts)
    assert seen == published
    assert owed() == 0


def test_a_nack_in_the_middle_delivers_it_and_the_later_ones_again(puller: Puller) -> None:
    publish("k", 5)
    others = publish("o", 2)
    assert len(puller.pull()) == 7
    puller.nack("k3")
    assert puller.pull() == ["k3", "k4", "k5"], "the order holds while k1, k2 and another key are outstanding"
    puller.ack("k1", "k2", "k3", "k4", "k5", *others)
    assert owed() == 0


def test_a_lapse_in_the_middle_delivers_it_and_the_later_ones_again(puller: Puller) -> None:
    publish("k", 5)
    puller.pull()
    puller.lapse("k4", "k2")
    assert puller.pull() == ["k2", "k3", "k4", "k5"]


def test_messages_without_a_key_come_again_alone(puller: Puller) -> None:
    publish("", 3)
    puller.pull()
    puller.nack("2")
    assert puller.pull() == ["2"]


def test_nacks_of_several_messages_of_a_key_keep_their_order(puller: Puller) -> None:
    publish("k", 6)
    puller.pull()
    puller.nack("k5")
    puller.nack("k2", "k3")
    assert puller.pull(2) == ["k2", "k3"]
    assert puller.pull() == ["k4", "k5", "k6"]


def test_later_messages_wait_for_the_backoff_of_the_one_that_was_nacked(redis_url: str) -> None:
    puller = Puller(ordered(retryPolicy={"minimumBackoff": "60s", "maximumBackoff": "600s"}))
    publish("k", 3)
    puller.pull()
    puller.nack("k2")
    publish("k", 1, start=4)
    publish("o", 1)
    assert puller.pull() == ["o1"]
    puller.ack("k1")
    assert puller.pull() == []


def test_an_ack_of_a_later_message_counts_when_the_earlier_ones_are_acknowledged(puller: Puller) -> None:
    publish("k", 3)
    puller.pull()
    puller.ack("k2", "k3")
    assert owed() == 3
    puller.ack("k1")
    assert owed() == 0


def test_a_message_that_is_skipped_keeps_no_later_ones_owed_that_are_acknowledged(puller: Puller) -> None:
    publish("k", 4)
    puller.pull()
    first, second, _, fourth = Delivery.objects.order_by("message_id").values_list("message_id", flat=True)
    puller.ack("k3")
    # When one is skipped behind another that is leased, then what comes later is still owed
    settle_messages(puller.subscription, [second], settlement=Settlement.SKIP)
    assert owed() == 3
    # And when the first one is skipped, then only what nobody acknowledged
    settle_messages(puller.subscription, [first], settlement=Settlement.SKIP)
    assert list(Delivery.objects.values_list("message_id", flat=True)) == [fourth]
    puller.lapse("k4")
    assert puller.pull() == ["k4"]


def test_a_nack_delivers_later_messages_again_although_they_were_acknowledged(puller: Puller) -> None:
    publish("k", 3)
    puller.pull()
    puller.ack("k3")
    puller.nack("k2")
    assert puller.pull() == ["k2", "k3"]


def test_an_ack_that_waits_for_an_earlier_one_does_not_lapse(puller: Puller) -> None:
    publish("k", 2)
    puller.pull()
    puller.ack("k2")
    puller.lapse("k2")
    assert puller.pull() == []
    puller.ack("k1")
    assert owed() == 0


def test_messages_whose_acks_were_lost_before_the_database_heard_of_them_come_again(puller: Puller) -> None:
    """As if the process died between the two."""
    publish("k", 2)
    puller.pull()
    leases = read_ack_ids(puller.subscription, [puller.ack_ids["k1"], puller.ack_ids["k2"]])
    pairs = [(lease.message_id, lease.times) for lease in leases]
    default_backlog().acknowledge(Lane(puller.subscription.pk, "local"), pairs, generation=leases[0].generation)
    puller.lapse("k1", "k2")
    assert puller.pull() == ["k1", "k2"]


@pytest.mark.parametrize(("part", "name"), [(Backlog, "remove"), (statements, "delete_deliveries")])
def test_an_ack_that_is_repeated_after_an_outage_between_its_steps_lets_its_key_go_on(
    puller: Puller, monkeypatch: pytest.MonkeyPatch, part: object, name: str
) -> None:
    publish("k", 3)
    puller.pull(2)
    with monkeypatch.context() as patch:
        patch.setattr(part, name, Mock(side_effect=redis.ConnectionError("away")))
        with pytest.raises(redis.ConnectionError):
            puller.ack("k1", "k2")
    other = Puller(puller.subscription, "two")
    assert other.pull() == []
    puller.ack("k1", "k2")
    assert other.pull() == ["k3"]
    assert owed() == 1


def test_messages_whose_leases_end_while_their_acks_are_stored_leave_nothing_behind(puller: Puller) -> None:
    publish("k", 3)
    puller.pull()
    # Given two acks that are on their way to the database
    leases = read_ack_ids(puller.subscription, [puller.ack_ids["k1"], puller.ack_ids["k2"]])
    [(origin, _)] = leases_by_origin(leases).items()
    pairs = [(lease.message_id, lease.times) for lease in leases]
    settled_ids, _ = default_backlog().acknowledge(origin.lane, pairs, generation=origin.generation)
    # When a nack ends the first lease, which takes the others back, and the acks arrive
    puller.nack("k1")
    forget_deliveries(origin, sorted(settled_ids))
    # Then the third message is next, alone
    assert puller.pull() == ["k3"]
    puller.ack("k3")
    assert owed() == 0


def test_an_ack_of_a_lease_that_a_nack_took_back_is_too_late(puller: Puller) -> None:
    publish("k", 3)
    puller.pull()
    puller.nack("k2")
    puller.ack("k3")
    assert puller.pull() == ["k2", "k3"]
    puller.ack("k1", "k2", "k3")
    assert owed() == 0


def test_an_ack_of_the_first_message_counts_after_its_lease_has_ended(puller: Puller) -> None:
    publish("k", 2)
    puller.pull()
    puller.lapse("k1", "k2")
    puller.pull(1)
    puller.nack("k1")
    puller.ack("k1")
    assert owed() == 1
    assert puller.pull() == ["k2"]


def test_exactly_once_keeps_accepted_acks_and_refuses_those_of_leases_that_a_nack_took_back(redis_url: str) -> None:
    puller = Puller(ordered(enableExactlyOnceDelivery=True))
    publish("k", 4)
    puller.pull()
    puller.ack("k4")
    assert owed() == 3
    puller.nack("k2")
    with pytest.raises(InvalidArgument) as refused:
        puller.ack("k3", "k1")
    assert list(refused.value.details[0]["metadata"]) == [puller.ack_ids["k3"]]
    assert puller.pull() == ["k2", "k3"]
    puller.ack("k2", "k3")
    assert owed() == 0


def test_only_the_message_that_was_nacked_is_charged_an_attempt_and_dead_lettered(redis_url: str) -> None:
    puller = Puller(ordered(deadLetterPolicy={"deadLetterTopic": DEAD, "maxDeliveryAttempts": 5}))
    publish("k", 4)
    puller.pull()
    puller.ack("k1")
    for attempt in range(1, 6):
        assert puller.attempts == {"k1": 1, "k2": attempt, "k3": 1, "k4": 1}
        puller.nack("k2")
        assert puller.pull() == (["k2", "k3", "k4"] if attempt < 5 else ["k3", "k4"])
    assert '"CloudPubSubDeadLetterSourceDeliveryCount":"5"' in Message.objects.latest("pk").attributes
    puller.ack("k3", "k4")
    assert owed() == 0


def test_attempts_count_on_when_the_lane_reads_the_database_again(redis_url: str) -> None:
    """An ordered lane does so whenever it was not told of a message: with a Redis per region, at others' publishes."""
    puller = Puller(ordered(deadLetterPolicy={"deadLetterTopic": DEAD, "maxDeliveryAttempts": 5}))
    publish("k", 2)
    lane = Lane(puller.subscription.pk, "local")
    early = ""
    for attempt in range(1, 6):
        assert puller.pull() == ["k1", "k2"]
        assert puller.attempts == {"k1": attempt, "k2": 1}
        early = early or puller.ack_ids["k1"]
        puller.nack("k1")
        LostOffer.objects.create(subscription_id=lane.subscription_id, region=lane.region, message_id=1)
        hear_of_elsewhere(lane.region)
        assert ack_ids_ended(subscription=puller.subscription, ack_ids=[early]) == {early}
    assert puller.pull() == ["k2"]
    assert '"CloudPubSubDeadLetterSourceDeliveryCount":"5"' in Message.objects.latest("pk").attributes
    puller.ack("k2")
    assert not default_backlog().client.exists(f"{lane.root}:a", f"{lane.root}:e")


def test_messages_of_a_key_go_to_one_puller_at_a_time(puller: Puller) -> None:
    other = Puller(puller.subscription, "two")
    publish("k", 4)
    publish("o", 1)
    assert puller.pull(2) == ["k1", "k2"]
    assert other.pull() == ["o1"]
    puller.ack("k1")
    assert other.pull() == []
    puller.ack("k2")
    assert other.pull(1) == ["k3"]
    assert puller.pull() == []
    other.ack("k3")
    assert puller.pull() == ["k4"]


def test_messages_of_a_key_go_to_another_puller_when_leases_lapse(puller: Puller) -> None:
    other = Puller(puller.subscription, "two")
    publish("k", 3)
    puller.pull(2)
    puller.lapse("k1")
    assert other.pull() == ["k1", "k2", "k3"]


def test_a_stream_takes_over_the_keys_of_its_client_when_the_one_that_holds_them_has_closed(puller: Puller) -> None:
    closing, *others = [Puller(puller.subscription, name) for name in ("app/1", "app/2", "app/3", "other/1")]
    publish("k", 4)
    assert closing.pull(2) == ["k1", "k2"]
    assert [other.pull() for other in others] == [[], [], []], "one stream at a time, also of one client"
    closing.extend(60, "k1")
    closing.give_back("k2")
    hand_over_keys(subscription=puller.subscription, puller=closing.name)
    successor, *others = others
    assert successor.pull(2) == ["k2", "k3"], "its client holds k1, and puts them behind it"
    assert [other.pull() for other in others] == [[], []]
    closing.ack("k1")
    successor.ack("k2", "k3")
    assert others[1].pull() == ["k4"]


def test_keys_of_a_stream_that_has_closed_wait_for_no_one_else_of_its_client(puller: Puller) -> None:
    closing, other = Puller(puller.subscription, "app/1"), Puller(puller.subscription, "other/1")
    publish("k", 3)
    assert closing.pull(2) == ["k1", "k2"]
    closing.extend(60, "k1", "k2")
    hand_over_keys(subscription=puller.subscription, puller=closing.name)
    assert other.pull() == []
    closing.lapse("k1")
    assert other.pull() == ["k1", "k2", "k3"]


def test_messages_that_a_stream_releases_come_first_and_cost_no_attempt(redis_url: str) -> None:
    puller = Puller(ordered(deadLetterPolicy={"deadLetterTopic": DEAD, "maxDeliveryAttempts": 5}))
    other = Puller(puller.subscription, "two")
    publish("k", 5)
    puller.pull(4)
    puller.ack("k1")
    puller.extend(60, "k2")
    puller.give_back("k1", "k2", "k3", "k4")
    assert other.pull() == [], "a puller touched k2 and may be working on it"
    puller.ack("k2")
    assert other.pull() == ["k3", "k4", "k5"]
    assert set(other.attempts.values()) == {1}
    puller.ack("k3")
    assert other.pull() == []
    assert owed() == 3, "the ack of a lease that was given back is too late"


def test_a_message_that_does_not_fit_into_a_pull_keeps_its_place(puller: Puller) -> None:
    publish("k", 4, size=4_000_000)
    assert puller.pull() == ["k1", "k2"]
    assert puller.pull() == ["k3", "k4"]


def test_after_a_wipe_all_owed_messages_come_again_in_order(puller: Puller, redis_url: str) -> None:
    publish("k", 5)
    puller.pull(3)
    puller.ack("k2", "k1")
    client_of(redis_url).flushall()
    rebuild()
    assert puller.pull(2) == ["k3", "k4"]
    puller.nack("k3")
    assert audit() == 0
    assert puller.pull() == ["k3", "k4", "k5"]


def test_after_a_seek_a_key_is_delivered_from_its_start(redis_url: str) -> None:
    puller = Puller(ordered(retainAckedMessages=True))
    publish("k", 4)
    puller.pull()
    puller.ack("k1", "k2")
    seek_subscription(name=puller.subscription.name, request={"time": "1970-01-01T00:00:00Z"})
    assert puller.pull() == ["k1", "k2", "k3", "k4"]
