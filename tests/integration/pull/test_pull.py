"""Pulling over REST: leases, acknowledgements, deadlines, and switching between push and pull."""

from __future__ import annotations

import base64
import socket
import threading
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from django.db import OperationalError, connection

from deliveries.api import pull_views
from deliveries.backlog import late
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.deadletters import moving
from deliveries.deadletters.forwarding import forward_dead_letters
from deliveries.models import Delivery, Message
from deliveries.publish.service import publish_message
from deliveries.pull import leasing, settling
from deliveries.pull.leasing import pull_messages
from deliveries.rules.ackids import AckId, ack_id_text, parse_ack_id
from deliveries.rules.payload import NewMessage
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import Unavailable
from subscriptions.iam import grants
from subscriptions.identity.access_tokens import create_access_token
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.beside import Beside
from tests.lanes import are_known
from tests.ports import wait_for
from tests.rawsockets import received as received_by
from tests.receiver import Receiver
from tests.restapi import Answer, Api
from tests.webservers import WebServer
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

TOPIC = "projects/shop/topics/orders"
ADA = "user:ada@example.com"


class Puller:
    """A pull subscription and its REST methods."""

    def __init__(self, api: Api, name: str = "pull", **fields: Any) -> None:
        self.api = api
        self.path = f"subscriptions/{name}"
        api.put("topics/orders", {})
        api.create(self.path, {"topic": TOPIC} | fields)

    def pull(self, count: int = 100) -> list[dict[str, Any]]:
        answer = self.api.post(f"{self.path}:pull", {"maxMessages": count, "returnImmediately": True})
        assert answer.status == 200, answer
        received: list[dict[str, Any]] = answer.body.get("receivedMessages", [])
        return received

    def ack(self, *received: dict[str, Any]) -> Answer:
        return self.api.post(f"{self.path}:acknowledge", {"ackIds": [message["ackId"] for message in received]})

    def extend(self, seconds: int, *received: dict[str, Any]) -> Answer:
        ids = [message["ackId"] for message in received]
        return self.api.post(f"{self.path}:modifyAckDeadline", {"ackIds": ids, "ackDeadlineSeconds": seconds})

    def nack(self, *received: dict[str, Any]) -> Answer:
        return self.extend(0, *received)

    def lapse(self) -> None:
        """Let every lease end now, as if its time had passed."""
        row = Subscription.objects.get(subscription_id=self.path.rpartition("/")[2])
        client, key = default_backlog().client, f"{Lane(row.pk, 'local').root}:l"
        for name in client.zrange(key, 0, -1):
            client.zadd(key, {name: 1})


@pytest.fixture
def puller(api: Api) -> Puller:
    return Puller(api)


def publish(count: int, *, start: int = 0, key: str = "", data: bytes = b"") -> list[str]:
    messages = [NewMessage(data or str(i).encode(), {"n": str(i)}, key) for i in range(start, start + count)]
    return publish_message(topic=get_topic(name=TOPIC), messages=messages)


def ids(received: list[dict[str, Any]]) -> list[str]:
    return [entry["message"]["messageId"] for entry in received]


def test_a_pulled_message_has_what_was_published(puller: Puller) -> None:
    [message_id] = publish(1, key="k")
    [received] = puller.pull()
    message = received["message"]
    assert base64.b64decode(message["data"]) == b"0"
    assert message["attributes"] == {"n": "0"}
    assert message["orderingKey"] == "k"
    assert message["messageId"] == message_id
    assert message["publishTime"].endswith("Z")
    assert "deliveryAttempt" not in received


def test_messages_come_in_publish_order_and_at_most_as_many_as_asked_for(puller: Puller) -> None:
    published = publish(10)
    assert ids(puller.pull(4)) == published[:4]
    assert ids(puller.pull(100)) == published[4:]
    assert puller.pull() == []


@pytest.mark.parametrize("room", [1, 4])
def test_messages_that_are_nacked_again_and_again_do_not_keep_others_back(puller: Puller, room: int) -> None:
    bad = set(publish(6))
    others = set(publish(6, start=6))
    # At worst a pull of one message is a retry's turn, with a chance of a half
    for _ in range(200):
        for received in puller.pull(room):
            if received["message"]["messageId"] in bad:
                puller.nack(received)
            else:
                puller.ack(received)
                others.remove(received["message"]["messageId"])
        if not others:
            break
    assert not others


def test_an_acknowledged_message_is_no_longer_owed(puller: Puller) -> None:
    publish(3)
    assert puller.ack(*puller.pull()).body == {}
    assert not Delivery.objects.exists()
    puller.lapse()
    assert puller.pull() == []


def test_a_nacked_message_comes_again_at_once(puller: Puller) -> None:
    published = publish(2)
    first, second = puller.pull()
    puller.nack(first)
    assert ids(puller.pull()) == published[:1]
    puller.ack(second)
    assert Delivery.objects.count() == 1


def test_a_lease_that_lapses_gives_the_message_to_another_puller(puller: Puller) -> None:
    published = publish(2)
    puller.pull()
    assert puller.pull() == []
    puller.lapse()
    assert ids(puller.pull()) == published


def test_an_extended_lease_holds_and_a_nack_of_an_earlier_lease_is_ignored(puller: Puller) -> None:
    publish(1)
    [early] = puller.pull()
    puller.lapse()
    [late] = puller.pull()
    assert early["ackId"] != late["ackId"]
    assert puller.nack(early).status == 200
    assert puller.pull() == []
    assert puller.extend(600, late).status == 200
    assert puller.pull() == []


def test_acknowledging_late_and_twice_is_fine(puller: Puller) -> None:
    publish(1)
    [early] = puller.pull()
    puller.lapse()
    [again] = puller.pull()
    assert puller.ack(early).status == 200
    assert not Delivery.objects.exists()
    assert puller.ack(early, again).status == 200
    puller.lapse()
    assert puller.pull() == []


def test_exactly_once_refuses_a_lapsed_lease_by_name_and_takes_the_others(api: Api) -> None:
    puller = Puller(api, enableExactlyOnceDelivery=True)
    publish(2)
    lapsed = puller.pull(1)[0]
    puller.lapse()
    again, other = puller.pull()
    answer = puller.ack(lapsed, other)
    assert answer.error["status"] == "INVALID_ARGUMENT"
    assert answer.error["message"].startswith("Some acknowledgement ids in the request were invalid.")
    [detail] = answer.error["details"]
    assert detail["metadata"] == {lapsed["ackId"]: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    assert Delivery.objects.count() == 1
    assert puller.ack(again).status == 200
    for refused in (puller.ack(lapsed), puller.extend(10, again)):
        assert refused.error["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize("is_fresh_first", [False, True])
@pytest.mark.parametrize("field", ["enableExactlyOnceDelivery", "enableMessageOrdering"])
def test_an_ack_counts_beside_that_of_an_earlier_lease_of_its_message(
    api: Api, field: str, is_fresh_first: bool
) -> None:
    puller = Puller(api, **{field: True})
    publish(1, key="k")
    [lapsed] = puller.pull()
    puller.lapse()
    [fresh] = puller.pull()
    both = [fresh, lapsed] if is_fresh_first else [lapsed, fresh]
    is_strict = field == "enableExactlyOnceDelivery"
    assert puller.extend(30, *both).status == (400 if is_strict else 200)
    answer = puller.ack(*both)
    assert not Delivery.objects.exists()
    if is_strict:
        assert list(answer.error["details"][0]["metadata"]) == [lapsed["ackId"]]


def test_exactly_once_takes_the_repeated_ack_of_a_client_that_got_no_answer(api: Api) -> None:
    puller = Puller(api, enableExactlyOnceDelivery=True)
    publish(1)
    received = puller.pull()
    assert [puller.ack(*received).status for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("is_leased_again", [False, True])
def test_exactly_once_takes_an_ack_that_failed_unless_the_message_was_leased_again(
    api: Api, monkeypatch: pytest.MonkeyPatch, is_leased_again: bool
) -> None:
    puller = Puller(api, enableExactlyOnceDelivery=True)
    publish(1)
    received = puller.pull()
    with monkeypatch.context() as patched:
        patched.setattr(settling, "_delete", Mock(side_effect=Unavailable("no database")))
        assert puller.ack(*received).status == 503
    puller.lapse()
    later = puller.pull() if is_leased_again else []
    assert puller.ack(*received).status == (400 if is_leased_again else 200)
    if is_leased_again:
        assert puller.ack(*later).status == 200
        assert puller.ack(*received).status == 400
    assert not Delivery.objects.exists()


@pytest.mark.parametrize("lost", ["lease", "redis"])
def test_exactly_once_refuses_an_ack_whose_lease_ends_while_it_waits_to_be_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Given an accepted ack that waits for its turn to write, when the message is leased anew, then that ack stands."""
    puller = Puller(api, enableExactlyOnceDelivery=True)
    publish(1)
    received = puller.pull()
    again: list[dict[str, Any]] = []

    def wait(**options: Any) -> Any:
        if not again:
            puller.lapse() if lost == "lease" else default_backlog().client.flushall()
            again.extend(puller.pull())
        return write_transaction(**options)

    monkeypatch.setattr(settling, "write_transaction", wait)
    assert puller.ack(*received).error["status"] == "INVALID_ARGUMENT"
    assert ids(again) == ids(received)
    assert puller.ack(*again).status == 200
    assert not Delivery.objects.exists()


def test_exactly_once_no_lease_lapses_while_its_ack_is_stored(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another puller would get the message, and its ack would succeed as well."""
    puller = Puller(api, enableExactlyOnceDelivery=True, ackDeadlineSeconds=10)
    publish(1)
    received = puller.pull()
    key = f"{Lane(Subscription.objects.get().pk, 'local').root}:l"
    [(_, ends_ms)] = default_backlog().client.zrange(key, 0, -1, withscores=True)
    later: list[tuple[bytes, float]] = []

    def delete(*_: Any) -> set[int]:
        later.extend(default_backlog().client.zrange(key, 0, -1, withscores=True))
        return set()

    monkeypatch.setattr(settling, "_delete", delete)
    assert puller.ack(*received).status == 200
    assert later[0][1] > ends_ms


def test_exactly_once_never_hands_out_a_message_that_the_database_has_acknowledged(api: Api) -> None:
    """As after a crash between the two: Redis still has the delivery and the database does not."""
    puller = Puller(api, enableExactlyOnceDelivery=True)
    publish(2)
    Delivery.objects.first().delete()  # type: ignore[union-attr]
    assert len(puller.pull()) == 1
    assert puller.pull() == []


def test_a_delivery_attempt_counts_nacks_and_lapses_with_a_dead_letter_policy(api: Api) -> None:
    api.put("topics/dead", {})
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    puller = Puller(api, deadLetterPolicy=policy)
    publish(1)
    [first] = puller.pull()
    puller.nack(first)
    [second] = puller.pull()
    puller.lapse()
    [third] = puller.pull()
    assert [message["deliveryAttempt"] for message in (first, second, third)] == [1, 2, 3]


def test_a_message_is_dead_lettered_by_its_last_nack_without_another_pull(api: Api) -> None:
    api.put("topics/dead", {})
    dead = Puller(api, "dead", topic="projects/shop/topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    puller = Puller(api, deadLetterPolicy=policy)
    publish(2)
    [other] = puller.pull(count=1)
    for attempt in range(1, 6):
        [received] = puller.pull()
        assert received["deliveryAttempt"] == attempt
        assert dead.pull() == []
        puller.nack(received, other) if attempt == 5 else puller.nack(received)
    [letter] = dead.pull()
    assert letter["message"]["data"] == received["message"]["data"]
    assert letter["message"]["attributes"]["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    puller.nack(received)
    assert dead.pull() == [], "a second nack changes nothing"
    [again] = puller.pull()
    assert (again["message"]["messageId"], again["deliveryAttempt"]) == (other["message"]["messageId"], 2)
    puller.ack(again)
    assert Delivery.objects.count() == 1, "only the dead letter is still owed"


def test_a_dead_letter_of_which_redis_was_not_told_comes_no_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscriber would nack it again and again: the database no longer owes it, so it has no last attempt."""
    api.put("topics/dead", {})
    dead = Puller(api, "dead", topic="projects/shop/topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    puller = Puller(api, deadLetterPolicy=policy)
    publish(1)
    for _ in range(4):
        puller.nack(*puller.pull())
    [last] = puller.pull()

    def fail(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(late, "remove", fail)
        assert puller.nack(last).status == 503
    assert len(dead.pull()) == 1, "the dead letter is offered whatever becomes of Redis' note of the message"
    puller.lapse()
    assert puller.pull() == []
    lane = Lane(Subscription.objects.get(subscription_id="pull").pk, "local")
    assert are_known(default_backlog(), lane, ids([last])) == [False]


def test_a_transaction_that_makes_dead_letters_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request nacks thousands of messages of any size, which would all be in memory at once."""
    api.put("topics/dead", {})
    dead = Puller(api, "dead", topic="projects/shop/topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    puller = Puller(api, deadLetterPolicy=policy)
    publish(7, data=b"x" * 1000)
    sizes: list[int] = []

    def forward(**values: Any) -> Any:
        sizes.append(len(values["attempts"]))
        return forward_dead_letters(**values)

    monkeypatch.setattr(settling, "forward_dead_letters", forward)
    monkeypatch.setattr(moving, "BATCH_BYTES", 3500)
    for _ in range(5):
        puller.nack(*puller.pull())
    assert sizes == [3, 3, 1]
    assert len(dead.pull()) == 7


def test_a_retry_policy_holds_back_a_nacked_message(api: Api) -> None:
    puller = Puller(api, retryPolicy={"minimumBackoff": "60s", "maximumBackoff": "600s"})
    publish(2)
    first, second = puller.pull()
    puller.nack(first)
    puller.lapse()
    assert puller.pull() == []
    key = f"{Lane(Subscription.objects.get().pk, 'local').root}:z"
    assert default_backlog().client.zcard(key) == 2
    assert second


def test_a_backlog_longer_than_redis_holds_is_pulled_whole_and_in_order(
    api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BACKLOG_LIMIT = 20
    monkeypatch.setattr(default_backlog(), "limit", 20)
    puller = Puller(api)
    published = publish(150)
    seen: list[str] = []
    while received := puller.pull(40):
        seen += ids(received)
        puller.ack(*received)
    assert seen == published


def test_large_messages_are_pulled_from_the_database(puller: Puller) -> None:
    publish(1, data=b"x" * 100_000)
    [received] = puller.pull()
    assert base64.b64decode(received["message"]["data"]) == b"x" * 100_000


def test_a_message_whose_payload_is_gone_does_not_keep_its_key(api: Api) -> None:
    """It was settled while a page with it was on its way, and deleted since."""
    puller = Puller(api, enableMessageOrdering=True)
    first, second = publish(1, key="k", data=b"x" * 100_000) + publish(1, start=1, key="k")
    puller.nack(*puller.pull())
    Message.objects.filter(pk=first).delete()
    received = puller.pull()
    assert ids(received) == [second]
    puller.ack(*received)
    assert not Delivery.objects.exists()
    assert not default_backlog().client.keys(f"ph:{Subscription.objects.get().pk}:*:d")


def test_a_wiped_redis_loses_no_message(puller: Puller, redis_url: str) -> None:
    published = publish(5)
    puller.ack(*puller.pull(2))
    client_of(redis_url).flushall()
    assert ids(puller.pull()) == published[2:]


def test_a_publish_wakes_a_puller_that_waits(puller: Puller) -> None:
    answers: list[Answer] = []
    path = f"/v1/projects/shop/{puller.path}:pull"

    def wait() -> None:
        answers.append(Api().post(path, {"maxMessages": 10}))
        connection.close()

    waiting = threading.Thread(target=wait)
    waiting.start()
    published = publish(1)
    waiting.join(timeout=60)
    assert ids(answers[0].body["receivedMessages"]) == published


def test_a_pull_that_waits_ends_with_the_right_to_pull(
    puller: Puller, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_views, "HOLD_SECONDS", 600)
    row = Subscription.objects.get()
    grants.grant_role(row, role="roles/pubsub.subscriber", member=ADA)
    bearer = f"Bearer {create_access_token(member=ADA).token}"
    settings.ANONYMOUS = ""
    answers: list[Answer] = []
    path = f"/v1/projects/shop/{puller.path}:pull"
    waiting = Beside(lambda: answers.append(Api().post(path, {"maxMessages": 10}, Authorization=bearer)))
    wait_for(lambda: default_backlog().client.info("clients")["blocked_clients"], what="the pull to be held")
    grants.revoke_role(row, role="roles/pubsub.subscriber", member=ADA)
    published = publish(1)
    waiting.end()
    assert answers[0].status == 403
    assert [received.message["messageId"] for received in pull_messages(subscription=row, max_messages=1)] == published


def test_no_message_is_leased_to_a_client_that_has_hung_up(puller: Puller, redis_url: str) -> None:
    """Clients have timeouts of their own, which may be shorter than a pull is held."""
    body = '{"maxMessages": 10}'
    head = f"POST /v1/projects/shop/{puller.path}:pull HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
    holds = "from deliveries.api import pull_views; pull_views.HOLD_SECONDS = 1e6"
    with (
        WebServer(redis_url, first=holds) as server,
        socket.create_connection(server.address, timeout=60) as client,
    ):
        client.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n{body}".encode())
        # The server waits for messages by then
        wait_for(lambda: default_backlog().client.info("clients")["blocked_clients"], what="the pull to be held")
        client.shutdown(socket.SHUT_WR)
        assert b"200 OK" in received_by(client)
        published = publish(1)
        assert ids(puller.pull()) == published


def test_a_pull_that_fails_gives_back_what_it_has_leased(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would get it before its lease lapses, which would cost an attempt."""
    api.put("topics/dead", {})
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    puller = Puller(api, deadLetterPolicy=policy)
    published = publish(3)

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(leasing, "_unpullable", fail)
        assert api.post(f"{puller.path}:pull", {"maxMessages": 10, "returnImmediately": True}).status == 503
    received = puller.pull()
    assert ids(received) == published
    assert {message["deliveryAttempt"] for message in received} == {1}


def test_a_full_redis_is_emptied_by_pulling(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no page meanwhile, and a lease that runs low asks for one."""
    monkeypatch.setattr(default_backlog(), "limit", 20)
    puller = Puller(api)
    published = publish(60)
    seen = ids(puller.pull(1))
    default_backlog().client.config_set("maxmemory", 1)
    try:
        seen += ids(puller.pull(12))
        seen += ids(puller.pull(12))
    finally:
        default_backlog().client.config_set("maxmemory", 0)
    assert seen == published[: len(seen)]
    assert len(seen) > 12
    wait_for(lambda: seen.extend(ids(puller.pull())) or len(seen) == 60, what="the pages that failed")
    assert seen == published


def test_pulling_needs_a_pull_subscription(api: Api) -> None:
    api.put("topics/orders", {})
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}})
    answer = api.post("subscriptions/push:pull", {"maxMessages": 1})
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert answer.error["message"] == "This method is not supported for this subscription type."


def test_a_detached_subscription_is_neither_pulled_nor_acknowledged(puller: Puller) -> None:
    publish(1)
    [received] = puller.pull()
    puller.api.post(f"{puller.path}:detach")
    for answer in (
        puller.api.post(f"{puller.path}:pull", {"maxMessages": 1}),
        puller.ack(received),
        puller.extend(10, received),
    ):
        assert answer.error["status"] == "FAILED_PRECONDITION"


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("verb", "body", "message"),
    [
        ("pull", {}, "You have passed an invalid argument to the service (argument=max_messages)."),
        ("pull", {"maxMessages": -1}, "You have passed an invalid argument to the service (argument=max_messages)."),
        ("acknowledge", {}, "You have not specified an ack ID in the request."),
        ("acknowledge", {"ackIds": ["nope"]}, "You have passed an invalid ack ID to the service (ack_id=nope)."),
        ("modifyAckDeadline", {"ackDeadlineSeconds": 10}, "You have not specified an ack ID in the request."),
        (
            "modifyAckDeadline",
            {"ackIds": ["a"], "ackDeadlineSeconds": 601},
            "Invalid ack deadline given (ack_deadline=601). The ack deadline must be between 0 and 600 seconds.",
        ),
    ],
)
def test_bad_input_has_productions_own_texts(puller: Puller, verb: str, body: Any, message: str) -> None:
    answer = puller.api.post(f"{puller.path}:{verb}", body)
    assert answer.error["status"] == "INVALID_ARGUMENT"
    assert answer.error["message"] == message


def test_an_ack_id_of_another_subscription_is_refused(api: Api, puller: Puller) -> None:
    other = Puller(api, "other")
    publish(1)
    [received] = puller.pull()
    assert other.ack(received).error["status"] == "INVALID_ARGUMENT"
    assert Delivery.objects.count() == 2


def test_from_push_to_pull_and_back_nothing_is_lost(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    puller = Puller(api, pushConfig={"pushEndpoint": receiver.url})
    published = publish(6)
    with Worker(redis_url):
        wait_for(lambda: len(receiver.requests) >= 3, what="nacks")
        api.post(f"{puller.path}:modifyPushConfig", {"pushConfig": {}})
        received_by_id: dict[str, dict[str, Any]] = {}

        def all_pulled() -> bool:
            received_by_id.update({received["message"]["messageId"]: received for received in puller.pull()})
            return len(received_by_id) == 6

        wait_for(all_pulled, what="all six by pulling")
        puller.ack(*[received_by_id[message_id] for message_id in published[:2]])
        receiver.default = 204
        api.post(f"{puller.path}:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url}})
        puller.lapse()
        wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
    assert set(published[2:]) <= {request.json["message"]["messageId"] for request in receiver.requests}


def test_an_ack_id_can_be_an_argument_of_a_command_line() -> None:
    """An ack id that begins with a hyphen would be read as a flag."""
    texts = [ack_id_text(AckId(1, "local", number, 1, 1), secret=b"x") for number in range(500)]
    assert {text[0] for text in texts} <= set("MNO")
    assert [parse_ack_id(text, secret=b"x") for text in texts] == [AckId(1, "local", n, 1, 1) for n in range(500)]
    assert parse_ack_id(texts[0], secret=b"y") is None
    assert parse_ack_id("", secret=b"x") is None
