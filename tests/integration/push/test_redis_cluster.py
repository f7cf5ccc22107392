"""A Redis Cluster that holds the cells: every path of a message, and what becomes of it while the nodes change."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from deliveries.backlog.default import default_backlog
from deliveries.backlog.reconcile import audit
from deliveries.backlog.records import cell_of, cell_prefix
from deliveries.inspection.conditions import Condition
from deliveries.inspection.failing import conditions_of
from deliveries.inspection.status import subscription_status
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.redisclusters import RedisCluster, cluster_in_use
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

CELLS = 16
TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def cluster(redis_url: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisCluster]:
    with cluster_in_use(tmp_path, redis_url, CELLS, settings=settings, monkeypatch=monkeypatch) as cluster:
        yield cluster


class Endpoint:
    """Notes the numbers of the messages that each subscription gets; nacks the first push of some, and holds others."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.held: set[str] = set()
        self.may_end = threading.Event()
        self._nacked: set[tuple[str, str]] = set()

    def __call__(self, request: Request) -> int:
        message, name = request.json["message"], request.json["subscription"].rpartition("/")[2]
        push = name, message["messageId"]
        if message["attributes"].get("nack") and push not in self._nacked:
            self._nacked.add(push)
            return 503
        if message["attributes"].get("held"):
            self.held.add(name)
            self.may_end.wait(600)
        self.numbers[name].append(int(message["attributes"]["n"]))
        return 204

    def has(self, names: list[str], numbers: range) -> bool:
        return all(set(self.numbers[name]) >= set(numbers) for name in names)


def subscribe(receiver: Receiver, *names: str, **fields: Any) -> None:
    api = Api()
    api.put("topics/orders", {})
    for name in names:
        body = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}} | fields
        assert api.put(f"subscriptions/{name}", body).status == 200


def publish(numbers: range, **attributes: str) -> None:
    for number in numbers:
        message = NewMessage(b"x", {"n": str(number), **attributes}, "key")
        publish_message(topic=get_topic(name=TOPIC), messages=[message])


def slot_of(name: str) -> int:
    """Return the slot of the cell of a subscription."""
    pk = Subscription.objects.get(subscription_id=name).pk
    return key_slot(cell_prefix(cell_of(pk)).encode())


def condition_of(name: str) -> Condition:
    return subscription_status(Subscription.objects.get(subscription_id=name)).condition


def settled() -> None:
    wait_for(lambda: not Delivery.objects.exists(), what="the last ack")


def firsts(numbers: list[int]) -> list[int]:
    """Return the numbers in the order of their first pushes: a few messages come twice."""
    return list(dict.fromkeys(numbers))


PLAIN, ORDERED = [f"plain{number}" for number in range(CELLS)], [f"ordered{number}" for number in range(CELLS)]


def kill_primary(cluster: RedisCluster, endpoint: Endpoint) -> None:
    """Kill a primary, and wait until the messages go on by its replica."""
    slot = slot_of("ordered0")
    killed = cluster.owner(slot)
    assert killed is not None
    killed.server.stop()
    wait_for(lambda: cluster.owner(slot) is not None, what="the replica")
    pushes = endpoint.numbers["ordered0"]
    before = len(pushes)
    wait_for(lambda: len(pushes) > before + 20, what="pushes by the replica")
    killed.server.start()
    wait_for(cluster.is_whole, what="the Cluster")


def move_slots(cluster: RedisCluster, _: Endpoint) -> None:
    """Move cells to their neighbours, in use."""
    for name in ORDERED[:6]:
        slot = slot_of(name)
        primaries = [node for node in cluster.nodes if node.client.role()[0] == b"master"]
        owner = cluster.owner(slot)
        assert owner is not None
        cluster.move_slot(slot, primaries[primaries.index(owner) - 1])


def add_and_drain(cluster: RedisCluster, _: Endpoint) -> None:
    """Add a node, give it cells, and take them away again."""
    added = cluster.start_node()
    wait_for(cluster.is_whole, what="the Cluster")
    slots = {slot_of(name): cluster.owner(slot_of(name)) for name in ORDERED[:6]}
    for slot in slots:
        cluster.move_slot(slot, added)
    for slot, owner in slots.items():
        assert owner is not None
        cluster.move_slot(slot, owner)
    added.server.stop()


@contextmanager
def publishing(start: int) -> Iterator[Callable[[], int]]:
    """Publish one message after the other in the background. The function that is yielded returns the next number."""
    stopping = threading.Event()
    numbers = [start]

    def run() -> None:
        from django.db import connection

        while not stopping.wait(0.01):
            publish(range(numbers[0], numbers[0] + 1))
            numbers[0] += 1
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: numbers[0]
    finally:
        stopping.set()
        thread.join()


@pytest.mark.parametrize("change", [kill_primary, move_slots, add_and_drain])
def test_nothing_is_lost_and_keys_keep_their_order(
    change: Callable[[RedisCluster, Endpoint], None], cluster: RedisCluster
) -> None:
    """Given messages in all cells, when nodes change, then each message arrives, and those of a key do so in order."""
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        subscribe(receiver, *PLAIN)
        subscribe(receiver, *ORDERED, enableMessageOrdering=True)
        with (
            Worker(cluster.url, name="one"),
            Worker(cluster.url, name="two"),
            Worker(cluster.url, name="maintenance", queue="maintenance", beat=True),
        ):
            publish(range(5))
            settled()
            with publishing(5) as next_number:
                change(cluster, endpoint)
                wait_for(lambda: next_number() > 50, what="more messages")
            settled()
    count = next_number()
    for name in ORDERED:
        assert firsts(endpoint.numbers[name]) == list(range(count))
    for name in PLAIN:
        assert set(endpoint.numbers[name]) == set(range(count))


def pull(name: str) -> dict[int, str]:
    """Return the ack ids of the messages that a pull subscription hands out now, by their numbers."""
    answer = Api().post(f"subscriptions/{name}:pull", {"maxMessages": 100})
    received = answer.body.get("receivedMessages", ())
    return {int(each["message"]["attributes"]["n"]): each["ackId"] for each in received}


def pull_all(name: str, count: int) -> dict[str, list[str]]:
    """Return the ack ids of the messages, once each was handed out."""
    pulled: dict[int, str] = {}

    def has_come() -> bool:
        pulled.update(pull(name))
        return pulled.keys() >= set(range(count))

    wait_for(has_come, what=f"the messages of {name}")
    return {"ackIds": list(pulled.values())}


def test_every_path_of_a_message(cluster: RedisCluster, receiver: Receiver) -> None:
    """Leases, acks, exactly-once delivery, dead letters, a pause and a seek. The other tests have pushes."""
    api = Api()
    for topic in ("orders", "dead"):
        api.create(f"topics/{topic}")
    dead = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    quick = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
    api.create("subscriptions/pulled", {"topic": TOPIC, "retainAckedMessages": True})
    api.create("subscriptions/once", {"topic": TOPIC, "enableExactlyOnceDelivery": True})
    api.create("subscriptions/letters", {"topic": dead["deadLetterTopic"]})
    failing = {"topic": TOPIC, "pushConfig": {"pushEndpoint": f"{receiver.url}/failing"}}
    api.create("subscriptions/failing", failing | {"deadLetterPolicy": dead, "retryPolicy": quick})
    api.create("subscriptions/paused", {"topic": TOPIC, "pushConfig": {"pushEndpoint": f"{receiver.url}/paused"}})
    receiver.default = lambda request: 503 if request.path.endswith("/failing") else 204

    def call(method: str, body: dict[str, Any]) -> None:
        answer = api.post(f"subscriptions/{method}", body)
        assert answer.status == 200, answer.body

    def paused() -> list[Request]:
        return [request for request in receiver.requests if request.path.endswith("/paused")]

    call("paused:pause", {})
    before = utcnow().isoformat()
    with Worker(cluster.url), Worker(cluster.url, name="maintenance", queue="maintenance", beat=True):
        publish(range(3))
        call("pulled:modifyAckDeadline", pull_all("pulled", 3) | {"ackDeadlineSeconds": 0})
        call("pulled:acknowledge", pull_all("pulled", 3))
        leased = pull_all("once", 3)
        call("once:modifyAckDeadline", leased | {"ackDeadlineSeconds": 60})
        call("once:acknowledge", leased)
        assert api.post("subscriptions/once:modifyAckDeadline", leased | {"ackDeadlineSeconds": 60}).status == 400
        call("letters:acknowledge", pull_all("letters", 3))
        assert not paused()
        call("paused:resume", {})
        settled()
        assert len(paused()) >= 3
        call("pulled:seek", {"time": before})
        call("pulled:acknowledge", pull_all("pulled", 3))
        settled()


def test_an_audit_finds_what_is_missing(cluster: RedisCluster, receiver: Receiver) -> None:
    subscribe(receiver, *PLAIN)
    publish(range(2))
    lanes = default_backlog().lanes()
    assert len(lanes) == len(PLAIN)
    default_backlog().client.delete(lanes[0].state_key)
    assert audit() == 1
    with Worker(cluster.url):
        settled()
    pushed = {(request.json["subscription"], request.json["message"]["messageId"]) for request in receiver.requests}
    assert len(pushed) == 2 * len(PLAIN)


def test_other_cells_go_on_while_a_node_is_away(cluster: RedisCluster) -> None:
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        subscribe(receiver, *PLAIN)
        subscribe(receiver, *ORDERED, enableMessageOrdering=True)
        primary = cluster.owner(key_slot(cell_prefix(0).encode()))  # which also has the regions
        assert primary is not None
        replica = cluster.nodes[cluster.nodes.index(primary) + 3]
        away = [name for name in (*PLAIN, *ORDERED) if cluster.owner(slot_of(name)) is primary]
        others = [name for name in (*PLAIN, *ORDERED) if name not in away]
        with Worker(cluster.url), Worker(cluster.url, name="maintenance", queue="maintenance", beat=True):
            publish(range(5))
            settled()
            # Results that wait for the node don't keep those of others.
            publish(range(5, 6), held="1")
            wait_for(lambda: endpoint.held == {*PLAIN, *ORDERED}, what="the pushes")
            replica.server.stop()
            primary.server.stop()
            endpoint.may_end.set()
            publish(range(6, 15))
            publish(range(15, 16), nack="1")
            wait_for(lambda: endpoint.has(others, range(16)), what="the messages of the other cells")
            assert not any(set(endpoint.numbers[name]) & set(range(6, 16)) for name in away)
            unknown = {name for name in (*PLAIN, *ORDERED) if condition_of(name) is Condition.REDIS_DOWN}
            assert unknown == set(away), "the console knows how the others fare"
            rows = list(Subscription.objects.all())
            assert {row.subscription_id for row in rows if row.pk in conditions_of(rows)} == set(others)
            primary.server.start()
            settled()
    for name in ORDERED:
        assert firsts(endpoint.numbers[name]) == list(range(16))
    for name in PLAIN:
        assert set(endpoint.numbers[name]) == set(range(16))
