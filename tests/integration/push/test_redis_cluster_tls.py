"""A Redis Cluster behind TLS: every node that is found by way of the others is reached by TLS, and verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis
from pytest_django.live_server_helper import LiveServer
from redis.crc import key_slot

from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, cell_prefix
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.certificates import Authority
from tests.grpcservers import GrpcServer
from tests.integration.rpc.test_grpc import Stream
from tests.integration.test_redis_variants import with_tls
from tests.lanes import configure
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.redisclusters import RedisCluster, redis_cluster
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

CELLS = 16
TOPIC = "projects/shop/topics/orders"


@contextmanager
def cluster_behind_tls(
    folder: Path, broker_url: str, *, foreign: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RedisCluster]:
    """Use a Cluster whose URL names the first node alone. If `foreign`, nobody trusts the certificate of the second."""
    (other := folder / "other").mkdir()
    authority, stranger = Authority(folder), Authority(other)
    with ExitStack() as stack:
        ports: list[int] = []

        def announce(port: int) -> int:
            ports.append(port)
            issuer = stranger if foreign and len(ports) == 2 else authority
            return stack.enter_context(with_tls(str(port), issuer))

        cluster = stack.enter_context(redis_cluster(folder, announce=announce))
        url = f"rediss+cluster://127.0.0.1:{cluster.nodes[0].announced}?ssl_ca_certs={authority.ca_file}"
        for name, value in (("REDIS_URL", url), ("BROKER_URL", broker_url), ("CELLS", CELLS)):
            setattr(settings, name, value)
            monkeypatch.setenv(f"PUSHHUB_{name}", str(value))
        stack.callback(client_of(url).close)
        yield cluster


def slot_of(cell: int) -> int:
    return key_slot(cell_prefix(cell).encode())


def test_messages_are_pushed_and_pulled_by_tls_while_slots_move(
    redis_url: str,
    receiver: Receiver,
    live_server: LiveServer,
    tmp_path: Path,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        options: dict[str, Any] = {"settings": settings, "monkeypatch": monkeypatch}
        cluster = stack.enter_context(cluster_behind_tls(tmp_path, redis_url, foreign=False, **options))
        api = Api()
        api.create("topics/orders")
        for number in range(CELLS):
            pushed = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}}
            api.create(f"subscriptions/push{number}", pushed)
        api.create("subscriptions/worker", {"topic": TOPIC})
        stack.enter_context(Worker(settings.REDIS_URL))
        server = stack.enter_context(GrpcServer(settings.REDIS_URL, rest=live_server.url))
        stream = Stream(stack.enter_context(grpc.insecure_channel(server.address)))
        stack.callback(stream.cancel)

        def publish_and_settle() -> None:
            publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * 3)
            stream.send(ack_ids=[message.ack_id for message in stream.messages(3)])
            wait_for(lambda: not Delivery.objects.exists(), what="the acks")

        publish_and_settle()
        # The processes still ask the old owner, which names the new one.
        for cell in range(CELLS):
            owner = cluster.owner(slot_of(cell))
            assert owner is not None
            cluster.move_slot(slot_of(cell), cluster.nodes[(cluster.nodes.index(owner) + 1) % 3])
        publish_and_settle()
        assert len(receiver.requests) >= 6 * CELLS


def test_a_node_with_a_certificate_that_nobody_trusts_is_refused(
    redis_url: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"settings": settings, "monkeypatch": monkeypatch}
    with cluster_behind_tls(tmp_path, redis_url, foreign=True, **options) as cluster:
        lanes = [Lane(number, "local") for number in range(CELLS)]
        foreign = [lane for lane in lanes if cluster.owner(slot_of(lane.cell)) is cluster.nodes[1]]
        assert 0 < len(foreign) < CELLS
        for lane in lanes:
            if lane in foreign:
                with pytest.raises(redis.ConnectionError, match="did not answer|CERTIFICATE_VERIFY_FAILED"):
                    configure(default_backlog(), lane, mode=Mode.PUSH, action="new")
            else:
                configure(default_backlog(), lane, mode=Mode.PUSH, action="new")
        # What is moved there is refused as well, although the node that is asked first is trusted.
        lane = next(lane for lane in lanes if cluster.owner(slot_of(lane.cell)) is cluster.nodes[0])
        cluster.move_slot(slot_of(lane.cell), cluster.nodes[1])
        with pytest.raises(redis.ConnectionError, match="did not answer|CERTIFICATE_VERIFY_FAILED"):
            configure(default_backlog(), lane, mode=Mode.PUSH, action="known")
