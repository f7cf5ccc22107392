"""An ordering key that doesn't go on stops no other key, however many messages it has."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from deliveries.backlog import reconcile
from deliveries.backlog.backlog import WHICHEVER, Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.deadletters.settling import Settlement, settle_messages
from deliveries.models import Delivery, LostOffer, Message
from deliveries.publish.service import publish_message
from deliveries.publish.storing import take_message_ids
from deliveries.rules.payload import NewMessage
from deliveries.store import lanerows, statements
from deliveries.store.lostoffers import note_lost
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.integration.backlog.test_backlog import FIRST, LANE
from tests.integration.push.test_ordering import DOWN_LEVEL, Model
from tests.lanes import are_known, configure, lane_change, lane_state, page_requests
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

TOPIC = "projects/shop/topics/orders"
#: As many messages may wait in Redis. Of the bad key there are more, and they come first.
LIMIT, BAD, OTHERS = 20, 60, 8


def publish_all() -> None:
    topic = get_topic(name=TOPIC)
    messages = [NewMessage(b"x", {"n": str(number)}, "bad") for number in range(BAD)]
    messages += [NewMessage(b"x", {"n": "0"}, f"good-{number}") for number in range(OTHERS)]
    publish_message(topic=topic, messages=messages)


def lane_of(name: str) -> Lane:
    return Lane(Subscription.objects.get(subscription_id=name).pk, "local")


@pytest.mark.django_db(transaction=True)
def test_a_message_that_a_push_endpoint_refuses_holds_back_its_own_key_alone(
    receiver: Receiver, redis_url: str, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "GRACE_MS", -60_000)
    is_refused = True
    acked: list[tuple[str, int]] = []

    def script(request: Request) -> int:
        message = request.json["message"]
        if is_refused and message["orderingKey"] == "bad":
            return 500
        acked.append((message["orderingKey"], int(message["attributes"]["n"])))
        return 204

    receiver.default = script
    api.put("topics/orders", {})
    push = {"pushConfig": {"pushEndpoint": receiver.url}}
    api.create("subscriptions/push", {"topic": TOPIC, "enableMessageOrdering": True} | push)
    publish_all()
    with Worker(redis_url, PUSHHUB_BACKLOG_LIMIT=str(LIMIT)):
        # When the first message of a key is refused, then all other keys go on
        wait_for(lambda: len(acked) == OTHERS, what="the messages of other keys")
        assert {key for key, _ in acked} == {f"good-{number}" for number in range(OTHERS)}
        state = lane_state(default_backlog(), lane_of("push"))
        assert state.left == 1, "the key's later messages are left to the database"
        # And the audit, which compares both, knows of those
        assert reconcile.audit() == 0
        assert lane_state(default_backlog(), lane_of("push")).left == 1
        # When it is acknowledged, then the later ones follow in order
        is_refused = False
        wait_for(lambda: not Delivery.objects.exists(), what="the messages of the key")
    assert acked[OTHERS:] == [("bad", number) for number in range(BAD)]
    assert lane_state(default_backlog(), lane_of("push")).left == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("policy", [{}, {"retryPolicy": {"minimumBackoff": "3s", "maximumBackoff": "3s"}}])
@pytest.mark.parametrize("room", [1, 10])
def test_a_message_that_is_not_acknowledged_holds_back_its_own_key_alone_in_pulls(
    api: Api, redis_url: str, monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any], room: int
) -> None:
    monkeypatch.setattr(default_backlog(), "limit", LIMIT)
    monkeypatch.setattr(reconcile, "GRACE_MS", -60_000)
    puller = Puller(api, policy, room=room)
    puller.leave_bad()
    assert puller.refused
    assert reconcile.audit() == 0
    wait_for(lambda: puller.pull() == OTHERS + BAD, what="the messages of the key")
    assert puller.pulled[OTHERS:] == [("bad", number) for number in range(BAD)]


class Puller:
    """An ordered pull subscription with the messages of `publish_all`, whose subscriber may refuse some keys."""

    def __init__(self, api: Api, policy: dict[str, Any], *, room: int) -> None:
        self._api = api
        self._room = room
        self.pulled: list[tuple[str, int]] = []
        self.refused: set[str] = set()
        api.put("topics/orders", {})
        api.create("subscriptions/pull", {"topic": TOPIC, "enableMessageOrdering": True} | policy)
        publish_all()

    @property
    def lane(self) -> Lane:
        return lane_of("pull")

    def pull(self, *, refusing: Collection[str] = ()) -> int:
        """Pull once, and return how many messages were acknowledged until now."""
        request = {"maxMessages": self._room, "returnImmediately": True}
        for it in self._api.post("subscriptions/pull:pull", request).body.get("receivedMessages", []):
            key = it["message"]["orderingKey"]
            if key in refusing:
                self.refused.add(it["message"]["messageId"])
                body = {"ackIds": [it["ackId"]], "ackDeadlineSeconds": 0}
                self._api.post("subscriptions/pull:modifyAckDeadline", body)
            else:
                self.pulled.append((key, int(it["message"]["attributes"]["n"])))
                self._api.post("subscriptions/pull:acknowledge", {"ackIds": [it["ackId"]]})
        return len(self.pulled)

    def leave_bad(self, *, refusing: Collection[str] = ("bad",)) -> None:
        """Pull until the lane has left the key "bad" to the database, and only refused keys have messages."""
        wait_for(lambda: self.pull(refusing=refusing) == OTHERS + 1 - len(refusing), what="the messages of other keys")
        assert lane_state(default_backlog(), self.lane).left == 1


@pytest.mark.django_db(transaction=True)
def test_an_audit_passes_what_was_left_at_once_and_finds_what_is_missing(
    api: Api, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane that has left to the database more than an audit compares at once
    monkeypatch.setattr(default_backlog(), "limit", LIMIT)
    monkeypatch.setattr(reconcile, "GRACE_MS", -60_000)
    monkeypatch.setattr(reconcile, "FIRST_IDS", 3)
    monkeypatch.setattr(reconcile, "MORE_IDS", 5)
    puller = Puller(api, {}, room=10)
    puller.leave_bad()
    # When it was not told of a message
    with monkeypatch.context() as patch:
        patch.setattr(default_backlog(), "offer", lambda _: None)
        publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {"n": "0"}, "unheard")])
    looks = []
    oldest_ids = lanerows.oldest_ids
    monkeypatch.setattr(lanerows, "oldest_ids", lambda *args, **limit: looks.append(args) or oldest_ids(*args, **limit))
    # Then an audit finds it, and reads no part of the key but the first
    assert reconcile.audit() == 1
    assert len(looks) <= 5, "a page of what Redis has, and one of what was left"


@pytest.mark.django_db(transaction=True)
def test_an_audit_takes_nothing_for_lost_that_is_read_while_it_compares(
    api: Api, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane that has left the last message of a key
    monkeypatch.setattr(default_backlog(), "limit", LIMIT)
    monkeypatch.setattr(reconcile, "GRACE_MS", -60_000)
    puller = Puller(api, {}, room=1)
    puller.leave_bad()
    left_keys = default_backlog().left_keys
    [left_id] = left_keys(puller.lane).values()
    Delivery.objects.filter(message_id__gt=left_id).delete()

    # When that is read after an audit has looked whether Redis has it
    def late(lane: Lane) -> dict[str, int]:
        wait_for(lambda: not left_keys(lane) or not puller.pull(), what="the last message to be read")
        return left_keys(lane)

    monkeypatch.setattr(default_backlog(), "left_keys", late)
    # Then it repairs nothing
    assert reconcile.audit() == 0


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("gone", [1, BAD - 1])
@pytest.mark.parametrize("is_swept", [True, False])
def test_a_key_goes_on_and_leaves_others_alone_when_the_first_messages_that_were_left_are_gone(
    api: Api, redis_url: str, monkeypatch: pytest.MonkeyPatch, gone: int, is_swept: bool
) -> None:
    # Given a message of another key that waits for its retry
    monkeypatch.setattr(default_backlog(), "limit", LIMIT)
    puller = Puller(api, {"retryPolicy": {"minimumBackoff": "600s", "maximumBackoff": "600s"}}, room=10)
    puller.leave_bad(refusing=("bad", "good-0"))
    retries = f"{puller.lane.root}:z"
    (first, _), (other, due_ms) = sorted(default_backlog().client.zrange(retries, 0, -1, withscores=True))
    # When messages are gone of the key that was left, and the one before them is skipped
    ids = sorted(Delivery.objects.filter(message_id__gt=int(first)).values_list("message_id", flat=True))[:gone]
    Delivery.objects.filter(message_id__in=ids).delete()
    if is_swept:
        Message.objects.filter(pk__in=ids).delete()
    settle_messages(Subscription.objects.get(), [int(first)], settlement=Settlement.SKIP)
    # Then the others of the key come
    count = len(puller.pulled)
    wait_for(lambda: puller.pull() >= count + BAD - 1 - gone, what="the messages of the key")
    puller.pull()
    assert puller.pulled[count:] == [("bad", number) for number in range(1 + gone, BAD)]
    assert lane_state(default_backlog(), puller.lane).left == 0
    # And the other message waits as before
    assert default_backlog().client.zscore(retries, other) == due_ms


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page_number", [10, 11])
def test_a_message_of_a_key_that_was_left_waits_for_a_lost_one_that_was_published_before_it(
    api: Api, redis_url: str, monkeypatch: pytest.MonkeyPatch, page_number: int
) -> None:
    # Given a key of which one message was left to the database
    monkeypatch.setattr(default_backlog(), "limit", LIMIT)
    [lost_id] = take_message_ids(1)
    puller = Puller(api, {}, room=10)
    puller.leave_bad()
    refused = sorted(Delivery.objects.values_list("message_id", flat=True))
    Delivery.objects.filter(message_id__in=refused[1:-1]).delete()
    # When one that overlaps it is stored, and its offer is lost
    lane, topic = puller.lane, get_topic(name=TOPIC)
    statements.insert_messages_with(
        [(lost_id, topic.pk, "local", b"lost", '{"n":"-1"}', "bad")], [(lost_id, lane.subscription_id, "local", 0, "")]
    )
    note_lost([LostOffer(**lane._asdict(), message_id=lost_id)])
    # Then the key's next message comes behind it, whichever page is read first
    publish_message(topic=topic, messages=[NewMessage(b"x", {"n": str(BAD)}, "bad")])
    lane_change(default_backlog(), lane, page_number=page_number)
    wait_for(lambda: puller.pull() >= OTHERS + 4, what="the messages of the key")
    assert puller.pulled.index(("bad", -1)) < puller.pulled.index(("bad", BAD))


def starving(redis_url: str, keys: list[str], *, limit: int) -> Model:
    """Return a lane that has sent the first messages of these keys, and has left to the database what was parked."""
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=limit), Mode.PUSH)
    model.configure("new")
    lane_change(model.backlog, LANE, window=100)
    model.publish(keys)
    model.take()
    model.starve()
    return model


@pytest.fixture
def blocked(redis_url: str) -> Model:
    """A lane that has left all messages of the key "a" to the database but the first, which is out."""
    model = starving(redis_url, list("aaaabcbc"), limit=6)
    for _ in range(2):
        for message_id in model.out[1:]:
            model.ack(message_id)
        model.take()
    assert keys_out(model) == ["a"]
    assert (lane_state(model.backlog, LANE).left, lane_state(model.backlog, LANE).spilled) == (1, False)
    return model


def keys_out(model: Model) -> list[str]:
    return [model.keys[message_id - FIRST] for message_id in model.out]


def ack_all(model: Model, *, turns: int = 20) -> list[int]:
    """Acknowledge all that is owed, one after the other, and return the numbers of the messages in that order."""
    acked = []
    for _ in range(turns):
        for message_id in model.out:
            acked.append(message_id - FIRST)
            model.ack(message_id)
        model.take()
    assert not model.rows
    return acked


def read_key(model: Model) -> None:
    """End the message before, and read the page that the key then wants. It has all messages of the key."""
    model.ack(FIRST)
    model.read_pages()
    [page] = model.pages
    assert list(page.next_id.values()) == [""]


@pytest.mark.any_database
def test_a_new_message_stays_behind_those_of_its_key_that_were_left(blocked: Model) -> None:
    blocked.publish(["a"])
    blocked.take()
    assert keys_out(blocked) == ["a"]
    assert ack_all(blocked) == [0, 1, 2, 3, 8]


@pytest.mark.any_database
def test_a_new_message_of_a_key_that_was_left_needs_no_page_however_late_it_comes(blocked: Model) -> None:
    # When the lane has forgotten which message was the key's last one
    blocked.backlog.client.delete(f"{LANE.root}:t")
    blocked.publish(["a"])
    blocked.publish(["d"])
    # Then neither has to be read from the database with the rest of the lane
    assert not lane_state(blocked.backlog, LANE).spilled
    blocked.take()
    assert keys_out(blocked) == ["a", "d"]
    assert ack_all(blocked) == [0, 9, 1, 2, 3, 8]


@pytest.mark.any_database
def test_a_message_whose_commit_took_long_is_read_with_the_later_ones_of_its_key(blocked: Model) -> None:
    # Given a key of which only a message is left that came after one that is not committed yet
    slow = blocked._next_id("a")
    blocked.publish(["a"])
    blocked.ack(FIRST)
    blocked.take()
    # When that one is committed and offered
    blocked.rows[slow] = "a"
    blocked._offer([slow])
    # Then the next page of the key begins with it
    [text] = blocked.backlog.client.hvals(f"{LANE.root}:w")
    assert text.split()[0].decode() == str(slow)


@pytest.mark.any_database
def test_a_message_that_comes_while_the_last_ones_of_its_key_are_read_is_read_too(blocked: Model) -> None:
    read_key(blocked)
    blocked.publish(["a"])
    blocked.offer_pages()
    assert ack_all(blocked) == [1, 2, 3, 8]


@pytest.mark.any_database
def test_a_message_that_came_with_its_key_is_not_sent_again_by_a_later_page(blocked: Model) -> None:
    # Given a message that is read with its key, and sent, before the lane's own pages get there
    late = FIRST + 9
    blocked.publish_unheard(["d", "a"])
    while late not in blocked.out:
        blocked.ack(min(blocked.out))
        blocked.take()
    lane_change(blocked.backlog, LANE, spilled=1, cursor=FIRST + 8)
    blocked.configure()
    # When it is acknowledged after a page of the lane was read, and before that page arrives
    blocked.read_pages()
    assert blocked.pages
    blocked.ack(late)
    blocked.offer_pages()
    # Then it is not sent again
    assert are_known(blocked.backlog, LANE, [late - 1, late]) == [True, False]


@pytest.mark.any_database
def test_in_backoff_another_key_is_read_although_a_retry_is_due(redis_url: str) -> None:
    # Given a lane in backoff whose only message in Redis is refused again and again, and another key in the database
    model = starving(redis_url, ["a"], limit=80)
    model.publish_unheard(["b"])
    lane_change(model.backlog, LANE, spilled=1, cursor=FIRST + 1, backoff_level=DOWN_LEVEL)
    for _ in range(4):
        if keys_out(model) != ["a"]:
            break
        model.nack(FIRST)
        model.end_pause()
        model.take()
    # Then that comes in its turn
    assert keys_out(model) == ["b"]


@pytest.mark.any_database
def test_what_was_left_is_read_again_when_the_endpoint_goes_down(redis_url: str) -> None:
    # Given a lane that has left messages of two keys, and has others that are parked
    model = starving(redis_url, list("a" * 45 + "b" * 45), limit=80)
    model.publish(list("c" * 30))
    model.take()
    assert (lane_state(model.backlog, LANE).left, keys_out(model)) == (2, ["a", "b", "c"])
    # When the endpoint counts as down, so that only a handful waits in Redis
    model.go_down(2)
    # Then nothing is lost
    lane_change(model.backlog, LANE, resume_ms=0, backoff_level=0, credit=1000)
    model.configure()
    assert sorted(ack_all(model, turns=200)) == list(range(120))


@pytest.mark.any_database
def test_a_lane_leaves_messages_of_so_many_keys_only_and_then_reads_these(redis_url: str) -> None:
    # Given a backlog of many keys, whose first messages take long
    limit = 10
    model = starving(redis_url, [], limit=limit)
    model.publish_unheard([f"key-{number // 3}" for number in range(180)])
    model.configure("spill", FIRST)
    for _ in range(60):
        lane_change(model.backlog, LANE, credit=1000)
        model.take()
        model.starve()
    # Then the lane does not read all of it to keep a list of the keys
    assert limit <= lane_state(model.backlog, LANE).left <= 2 * limit
    # And everything comes, the keys that it has begun with before the others
    acked = ack_all(model, turns=500)
    assert sorted(acked) == list(range(180))
    assert acked.index(5) < acked.index(179)


@pytest.mark.any_database
@pytest.mark.parametrize("ordered", [False, True])
def test_a_pull_lane_reads_no_more_while_many_messages_that_were_nacked_wait(redis_url: str, ordered: bool) -> None:
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=10), Mode.PULL)
    model.publish_unheard([""] * 100)
    configure(model.backlog, LANE, mode=Mode.PULL, action="known", ordered=ordered)
    # When a subscriber nacks whatever it gets
    nacked = set()
    for _ in range(100):
        leases = model.backlog.lease(LANE, count=5, duration_ms=10**9, countdown_ms=(0, 0))
        assert leases is not None
        if leases.page is not None:
            model.backlog.offer_pages([model.page_for(leases.page)])
        own = [(it.message_id, it.times) for it in leases.deliveries]
        nacked.update(message_id for message_id, _ in own)
        model.backlog.extend(LANE, own, generation=leases.generation, duration_ms=0, countdown_ms=(0, 0))
    # Then Redis has as many of its messages as may be leased, and not all
    assert 40 <= len(nacked) <= 60
    assert client.hlen(LANE.places_key) <= 60


@pytest.mark.any_database
def test_the_next_message_of_a_key_comes_after_retries_of_others_that_are_due(redis_url: str) -> None:
    # Given a puller that nacks messages of two keys, so that others of the first key wait behind it
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=10), Mode.PULL)
    model.configure("new")
    model.publish(list("abaa"))
    model.take()
    model.nack(FIRST)
    model.nack(FIRST + 1)
    # When it pulls one at a time, then the keys take turns
    order = []
    for _ in range(4):
        model._lease("one", count=1)
        [message_id] = model.out
        order.append(message_id - FIRST)
        model.ack(message_id)
    assert order == [0, 1, 2, 3]


@pytest.mark.any_database
def test_the_ack_of_a_lease_that_was_taken_back_has_no_effect_when_its_message_was_left(redis_url: str) -> None:
    # Given a puller that has lost the first of its leases of a key, and so the others, whose messages were left
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=10), Mode.PULL)
    model.configure("new")
    model.publish(list("aaaaaaa"))
    model.take()
    model.lapse(FIRST)
    lane_change(model.backlog, LANE, spilled=1)
    model.starve()
    assert lane_state(model.backlog, LANE).left == 1
    # When it acknowledges one of those after all, then that comes again behind the first one
    message_id, times, generation = model.ended[1]
    assert model.backlog.acknowledge(LANE, [(message_id, times)], generation=generation) == (set(), {message_id})
    # But one that is skipped by hand is gone
    skipped = FIRST + 2
    assert model.backlog.acknowledge(LANE, [(skipped, WHICHEVER)], generation="") == ({skipped}, set())


@pytest.mark.any_database
@pytest.mark.parametrize("settled", [[], [1, 2, 3]])
def test_a_message_that_waits_already_goes_out_once_and_in_its_turn(blocked: Model, settled: list[int]) -> None:
    # Given a paused lane, where a new message of the key waits, and one whose offer was lost
    lane_change(blocked.backlog, LANE, resume_ms=9e15)
    for number in settled:
        del blocked.rows[FIRST + number]
    blocked.publish(["a"])
    blocked.publish_unheard(["a"])
    blocked.ack(FIRST)
    # When a page has both
    [request] = page_requests(blocked.backlog, region=LANE.region)
    rows = [message_id for message_id in sorted(blocked.rows) if blocked.rows[message_id] == "a"]
    blocked.backlog.offer_pages([blocked.page_of(request, rows, dict.fromkeys(request.keys, ""))])
    # Then they go out in order
    lane_change(blocked.backlog, LANE, resume_ms=0)
    blocked.configure()
    blocked.take()
    assert ack_all(blocked) == [number for number in (1, 2, 3, 8, 9) if number not in settled]


@pytest.mark.any_database
@pytest.mark.parametrize("by_page", [True, False])
def test_a_message_whose_commit_took_long_goes_out_before_one_that_was_published_after_it(
    redis_url: str, by_page: bool
) -> None:
    # Given a key of which messages were left that came before one whose commit took long
    model = starving(redis_url, ["a", "b"], limit=6)
    slow = model._next_id("a")
    model.publish(["a", "b", "b"])
    if by_page:
        model.rows[slow] = "a"
        model._offer([slow])
    else:
        lane_change(model.backlog, LANE, spilled=1)
    model.starve()
    lane_change(model.backlog, LANE, resume_ms=9e15)
    if not by_page:
        # A lane knows the last messages of so many keys only
        lane_change(model.backlog, LANE, spilled=0)
        model.backlog.client.delete(f"{LANE.root}:t")
        model.rows[slow] = "a"
        model._offer([slow])
    model.page()
    assert lane_state(model.backlog, LANE).left == 2
    # When the others are read while it waits in Redis
    model.publish(["a"])
    model.ack(FIRST)
    model.page()
    lane_change(model.backlog, LANE, resume_ms=0)
    model.configure()
    # Then it goes out before the message that was published after it
    acked = ack_all(model)
    assert acked.index(slow - FIRST) < acked.index(6)


@pytest.mark.any_database
def test_a_message_whose_commit_took_long_is_left_with_the_later_ones_behind_which_it_is_parked(redis_url: str) -> None:
    # Given a message that was read when later ones of its key were parked
    model = starving(redis_url, ["a", "b"], limit=8)
    slow = model._next_id("a")
    model.publish(["a", "b", "b"])
    model.rows[slow] = "a"
    model._offer([slow])
    model.page()
    assert lane_state(model.backlog, LANE).parked == 4
    # When all of them are left to the database
    model.starve()
    assert lane_state(model.backlog, LANE).left == 2
    # Then it is read with them
    assert sorted(ack_all(model)) == list(range(6))


@pytest.mark.any_database
def test_a_pulled_message_does_not_come_again_after_its_ack_with_one_whose_commit_took_long(redis_url: str) -> None:
    # Given a puller that holds a message of a key, of which later messages were left
    client = client_of(redis_url)
    client.flushall()
    model = Model(Backlog(client, limit=6), Mode.PULL)
    model.configure("new")
    slow, pulled = model._next_id("a"), FIRST + 2
    model.publish(["a"] * 6)
    model._lease("one", count=1)
    model._lease("two")
    lane_change(model.backlog, LANE, spilled=1)
    model.starve()
    model.ack(FIRST + 1)
    model._lease("one", count=1)
    assert (model.out, lane_state(model.backlog, LANE).left) == ([pulled], 1)
    # When it acknowledges that after a page of the key was read, which begins with an earlier message
    model.rows[slow] = "a"
    model._offer([slow])
    model.read_pages()
    assert [message_id for message_id, _ in model.pages[0].messages][:2] == [slow, pulled]
    model.ack(pulled)
    model.offer_pages()
    # Then it is not sent again
    assert not any(are_known(model.backlog, LANE, [pulled]))
    model.take()
    assert ack_all(model) == [0, 3, 4, 5, 6]
