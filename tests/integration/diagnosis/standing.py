"""Set-ups that are broken: what they share, how to break one, and what is then to be read."""

from __future__ import annotations

import itertools
import socketserver
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from deliveries.models import Delivery
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from subscriptions.models.iam import SigningKey
from tests.certificates import Authority
from tests.metricrows import add_events
from tests.ports import wait_for
from tests.receiver import Answer, Receiver, Script
from tests.restapi import Api

HANGS = Answer(delay_seconds=600)
EMAIL = "pusher@shop.iam.gserviceaccount.com"


class Stand:
    """What all set-ups share: the API, and receivers of every kind."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.api = Api()
        self.stack = stack
        self.authority = Authority(folder)
        self.messages: dict[str, str] = {}
        self.api.post("serviceAccounts", {"accountId": "pusher"})

    def subscribe(self, name: str, endpoint: str, **fields: Any) -> None:
        """Create a topic, and a subscription that pushes to the endpoint; "" is a pull subscription."""
        self.api.create(f"topics/{name}")
        config = {"pushConfig": {"pushEndpoint": endpoint, **fields.pop("push", {})}} if endpoint else {}
        topic = f"projects/shop/topics/{name}"
        self.api.create(f"subscriptions/{name}", {"topic": topic, **config, **fields})

    def publish(self, name: str, count: int = 1, **headers: str) -> None:
        body = {"messages": [{"data": "aGVsbG8=", "orderingKey": "key"}] * count}
        answer = self.api.post(f"topics/{name}:publish", body, **headers)
        assert answer.status == 200, answer
        self.messages[name] = answer.body["messageIds"][0]

    def answering(self, script: Script) -> str:
        return self.stack.enter_context(Receiver(default=script)).url

    def tls(self, context: Any) -> str:
        receiver = Receiver(default=204)
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        self.stack.enter_context(receiver)
        return f"https://localhost:{receiver.port}/push"

    def self_signed(self) -> str:
        """Serve TLS with a certificate that signs itself."""
        other = Authority(self.authority._folder / "other")
        pem = other._folder / "self.pem"
        key = other._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem.write_bytes(key + other.ca_file.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return self.tls(context)

    def raw(self, answer: bytes, *, hangs: bool = False) -> str:
        """Return the address of a server that answers each request with these bytes, and then hangs up or hangs."""
        ended = threading.Event()

        class Handler(socketserver.BaseRequestHandler):
            """Answers one request."""

            def handle(self) -> None:
                with suppress(OSError):
                    self.request.recv(1 << 20)
                    self.request.sendall(answer)
                    ended.wait(600 if hangs else 0)

        server = self.stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler))
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(server.shutdown)
        self.stack.callback(ended.set)
        return f"http://127.0.0.1:{server.server_address[1]}/push"


@dataclass(frozen=True)
class Case:
    """A set-up, when it has shown what is wrong, and what is then to be read. "" as `step` says that nothing is."""

    break_it: Callable[[Stand, str], object]
    step: str
    #: Words of the diagnosis' summary.
    summary: str
    #: Words of the console's sentence.
    sentence: str = ""
    #: How pushes end: the one word for it on every surface.
    result: str = ""
    levels: tuple[str, ...] = ("warn", "bad")
    is_ready: Callable[[str], object] = field(default=lambda name: True)


def failing(
    endpoint: Callable[[Stand], str],
    result: str,
    step: str,
    summary: str,
    *,
    change: dict[str, Any] | None = None,
    **fields: Any,
) -> Case:
    """Return a case whose pushes end with `result`."""

    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, "http://127.0.0.1:40009/", **fields)
        settings = {"push_endpoint": endpoint(stand), **(change or {})}
        # The API would refuse some of these.
        Subscription.objects.filter(subscription_id=name).update(**settings)
        stand.publish(name)

    return Case(break_it, step, summary, result=result, is_ready=lambda name: nacked(name, result))


def nacked(name: str, result: str, *, times: int = 1) -> bool:
    rows = Delivery.objects.filter(subscription__subscription_id=name, last_result=result, attempts__gte=times)
    return rows.exists()


def answered(status: int, summary: str, **fields: Any) -> Case:
    return failing(lambda stand: stand.answering(status), str(status), "answer", summary, **fields)


def settled(name: str) -> bool:
    return not Delivery.objects.filter(subscription__subscription_id=name).exists()


def function(code: str) -> dict[str, Any]:
    return {"message_transforms": [{"javascriptUdf": {"functionName": "f", "code": code}}]}


def act(stand: Stand, name: str, method: str, body: Any = None) -> Any:
    answer = stand.api.post(f"subscriptions/{name}:{method}", body)
    assert answer.status == 200, answer
    return answer.body


def set_up(
    *steps: Callable[[Stand, str], object], script: Script = 204, count: int = 1, **fields: Any
) -> Callable[[Stand, str], None]:
    """Return a function that subscribes, publishes `count` messages, and then takes the steps."""

    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, stand.answering(script), **fields)
        if count:
            stand.publish(name, count)
        for step in steps:
            step(stand, name)

    return break_it


def pulled(*, count: int, pulls: int = 0, is_given_back: bool = False) -> Callable[[Stand, str], None]:
    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, "", ackDeadlineSeconds=600)
        stand.publish(name, count)
        if pulls:
            received = act(stand, name, "pull", {"maxMessages": pulls})["receivedMessages"]
            if is_given_back:
                ack_ids = [each["ackId"] for each in received]
                act(stand, name, "modifyAckDeadline", {"ackIds": ack_ids, "ackDeadlineSeconds": 0})

    return break_it


def dead_letters(stand: Stand, name: str, *, is_deleted: bool = False) -> None:
    stand.api.create(f"topics/{name}-dead")
    policy = {"deadLetterTopic": f"projects/shop/topics/{name}-dead", "maxDeliveryAttempts": 5}
    stand.subscribe(name, stand.answering(500), deadLetterPolicy=policy)
    if is_deleted:
        assert stand.api.delete(f"topics/{name}-dead").status == 200
    stand.publish(name)


def every_fifth(status: int) -> Script:
    """Return a script that answers 204 to four of five requests, whatever message they have."""
    numbers = itertools.count(1)
    return lambda request: status if next(numbers) % 5 == 0 else 204


def expired(stand: Stand, name: str) -> None:
    """Let a message outlive its retention before its first push, and count it, as no counter runs."""
    stand.subscribe(name, stand.answering(500))
    Subscription.objects.filter(subscription_id=name).update(message_retention_seconds=0)
    stand.publish(name)
    add_events(f"projects/shop/subscriptions/{name}", "drop", at=utcnow(), count=1, response_class="drop")


def no_signing_key(stand: Stand, name: str) -> None:
    """Make the signing keys unreadable, as another PUSHHUB_SECRET_KEY does. PushHub signs with a new one."""
    SigningKey.objects.update(private_key="unreadable")
    stand.subscribe(name, stand.answering(204), push={"oidcToken": {"serviceAccountEmail": EMAIL, "audience": name}})
    stand.publish(name)


def about_to_expire(stand: Stand, name: str) -> None:
    rows = Subscription.objects.filter(subscription_id=name)
    rows.update(
        expiration_ttl_seconds=7 * 86400, active_at=utcnow() - timedelta(days=6.5), updated_at="2020-01-01T00:00Z"
    )


def move_to_a_good_endpoint(stand: Stand, name: str) -> None:
    wait_for(lambda: nacked(name, "500", times=2), what="nacks")
    act(stand, name, "modifyPushConfig", {"pushConfig": {"pushEndpoint": stand.answering(204)}})
