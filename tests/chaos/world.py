"""The topics and subscriptions of a storm, one subscription of every kind, and who receives their messages."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import jwt
import requests

from tests.chaos import endpoints
from tests.chaos.caller import Caller
from tests.chaos.endpoints import Behaviour, Endpoint, Liar, Quick
from tests.chaos.ledger import Ledger, Published, now
from tests.chaos.publishers import PROJECT
from tests.chaos.pullers import GrpcPuller, Puller, RestPuller, StreamPuller

#: The topics: of most subscriptions, the one that a fault deletes, of dead letters, and of the bulk.
ORDERS, DOOMED, LETTERS, BULK = "orders", "doomed", "letters", "bulk"
#: The subscription that gets the dead letters.
MORGUE = "morgue"
ACCOUNT = "pusher@storm.iam.gserviceaccount.com"
#: Publishes with a token of its own, while a policy lets it.
GUEST = "user:guest@storm.example"
#: The messages a second that the guest publishes, beside the load.
GUEST_RATE = 2
AUDIENCE = "https://storm.example/push"
#: Of the subscription `limited`.
MAX_OUTSTANDING = 2
MAX_ATTEMPTS = 5
#: Kept free around a seek, as ids have the time of the web server that took the message.
SEEK_MARGIN_SECONDS = 2.0


@dataclass
class Contract:
    """A subscription: how it is made, who receives its messages, and what it is owed."""

    name: str
    body: dict[str, Any] = field(default_factory=dict)
    behaviour: Behaviour | None = None
    topic: str = ORDERS
    #: Its messages have to arrive soon, unless there is a fault.
    is_healthy: bool = False
    #: Messages are owed that were published later than this, and acknowledged to the publisher earlier than `until`.
    since: float = 0.0
    until: float = float("inf")
    #: Times of seeks: whatever was published before is owed no more, or owed again.
    seeks: list[float] = field(default_factory=list)
    #: Seeks that make messages come again: to which time, and when.
    replays: list[tuple[float, float]] = field(default_factory=list)
    #: None for a subscription that is pulled.
    endpoint: Endpoint | Quick | None = None

    @property
    def path(self) -> str:
        return f"/v1/{PROJECT}/subscriptions/{self.name}"

    @property
    def is_ordered(self) -> bool:
        return bool(self.body.get("enableMessageOrdering"))

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.body.get("enableExactlyOnceDelivery"))

    @property
    def is_push(self) -> bool:
        return self.endpoint is not None

    def owes(self, message: Published) -> bool:
        """Return whether the subscription has to deliver a message until it is acknowledged."""
        if message.topic != self.topic or not self._passes(message.attributes):
            return False
        is_sought = any(message.began < seek + SEEK_MARGIN_SECONDS for seek in self.seeks)
        return not is_sought and message.began > self.since and message.answered < self.until

    def replayed(self, message: Published) -> float | None:
        """Return the time of the last seek by which a message has to come again, unless a later one undid it."""
        margin, last = SEEK_MARGIN_SECONDS, None
        for to, sought in self.replays:
            if message.topic == self.topic and self.since < message.began and message.answered < sought - margin:
                last = sought if message.began > to + margin else None
        return last

    def dead_letters(self, message: Published) -> bool:
        """Return whether the endpoint refuses a message each time, so that it goes to the dead-letter topic."""
        return "deadLetterPolicy" in self.body and bool(message.attributes.get("poison"))

    def _passes(self, attributes: Mapping[str, str]) -> bool:
        return "filter" not in self.body or attributes.get("colour") == "red"


def contracts(seed: int, *, load: float, bulk: float) -> list[Contract]:
    """Return every kind of subscription, and two that get the bulk."""
    letters = {"deadLetterTopic": f"{PROJECT}/topics/{LETTERS}", "maxDeliveryAttempts": MAX_ATTEMPTS}
    token = {"oidcToken": {"serviceAccountEmail": ACCOUNT, "audience": AUDIENCE}}
    ordered = {"enableMessageOrdering": True}
    once = {"enableExactlyOnceDelivery": True, "ackDeadlineSeconds": 10}
    limit = {"attributes": {"x-pushhub-max-outstanding": str(MAX_OUTSTANDING)}}
    bare = {"noWrapper": {"writeMetadata": True}}
    return [
        Contract("plain", behaviour=endpoints.healthy, is_healthy=True),
        Contract("ordered", ordered, endpoints.moody),
        Contract("filtered", {"filter": 'attributes.colour = "red"'}, endpoints.Flapping(f"{seed}")),
        Contract("poisoned", {"deadLetterPolicy": letters}, endpoints.healthy),
        Contract(MORGUE, behaviour=endpoints.moody, topic=LETTERS),
        Contract("bare", {"pushConfig": bare}, endpoints.healthy, is_healthy=True),
        Contract("signed", {"pushConfig": token}, endpoints.moody),
        Contract("rough", behaviour=endpoints.rough),
        Contract("liar"),
        Contract("limited", {"pushConfig": limit}, endpoints.Slow(load + GUEST_RATE)),
        Contract("dead", behaviour=endpoints.Dead()),
        Contract("stuck", ordered, endpoints.Stuck("shared-", "singles-b:")),
        Contract("moved", ordered, endpoints.healthy),
        Contract("mayfly", behaviour=endpoints.moody),
        Contract("sought", {"retainAckedMessages": True, "messageRetentionDuration": "600s"}, endpoints.moody),
        Contract("orphan", behaviour=endpoints.moody, topic=DOOMED),
        Contract("once", once),
        Contract("pulled", ordered | {"ackDeadlineSeconds": 10}),
        Contract("streamed", ordered | {"ackDeadlineSeconds": 10}),
        Contract("streamed-once", once),
        *([Contract(BULK, topic=BULK, is_healthy=True), Contract("bulk-ordered", ordered, topic=BULK)] if bulk else []),
    ]


class World:
    """Makes everything in PushHub, and runs endpoints and pullers."""

    def __init__(self, ledger: Ledger, *, seed: int, load: float, bulk: float, addresses: list[str]) -> None:
        self.ledger = ledger
        self.calm = threading.Event()
        self.contracts = {contract.name: contract for contract in contracts(seed, load=load, bulk=bulk)}
        self.pullers: list[Puller] = []
        self.caller = Caller(addresses)
        self._addresses = addresses
        self._seed = seed
        self._keys: dict[str, jwt.PyJWK] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for topic in sorted({contract.topic for contract in self.contracts.values()}):
            self.make_topic(topic)
        self.guest = self._make_token()
        self.grant_guest(is_granted=True)
        account = {"accountId": ACCOUNT.partition("@")[0]}
        self.caller.until_done("POST", f"/v1/{PROJECT}/serviceAccounts", account, accept=(200, 409))
        for contract in self.contracts.values():
            self._start_endpoint(contract)
            self.make_subscription(contract)
        self._start_pullers()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for puller in self.pullers:
            puller.stop()
        for puller in self.pullers:
            puller.join()
        self._stack.close()
        self.caller.close()

    @staticmethod
    def _make_token() -> str:
        from django.core.management import call_command

        out = io.StringIO()
        call_command("token_create", "--member", GUEST, stdout=out, stderr=io.StringIO())
        return out.getvalue().strip()

    def grant_guest(self, *, is_granted: bool) -> None:
        """Let the guest publish to one topic, or to none."""
        bindings = [{"role": "roles/pubsub.publisher", "members": [GUEST]}] if is_granted else []
        path = f"/v1/{PROJECT}/topics/{ORDERS}:setIamPolicy"
        self.caller.until_done("POST", path, {"policy": {"bindings": bindings}})

    def enable_account(self, *, is_enabled: bool) -> None:
        """Let pushes get a token of the service account, or no longer."""
        verb = "enable" if is_enabled else "disable"
        self.caller.until_done("POST", f"/v1/{PROJECT}/serviceAccounts/{ACCOUNT}:{verb}", {})

    def is_guest_refused(self) -> bool:
        """Return whether each web server refuses what the guest publishes."""
        caller = Caller(self._addresses, token=self.guest)
        body = {"messages": [{"data": "Z3Vlc3Q="}]}
        try:
            answers = [
                caller.once("POST", f"/v1/{PROJECT}/topics/{ORDERS}:publish", body, number=number)
                for number in range(len(self._addresses))
            ]
        except requests.RequestException:
            return False
        finally:
            caller.close()
        return all(answer.status_code == 403 for answer in answers)

    def make_topic(self, name: str) -> None:
        self.caller.until_done("PUT", f"/v1/{PROJECT}/topics/{name}", {}, accept=(200, 409))

    def make_subscription(self, contract: Contract) -> None:
        """Make a subscription. It is owed what is published from now on."""
        body = {"topic": f"{PROJECT}/topics/{contract.topic}", **contract.body}
        if contract.is_push:
            body["pushConfig"] = self.push_config(contract)
        self.caller.until_done("PUT", contract.path, body, accept=(200, 409))
        contract.since = now()

    def push_config(self, contract: Contract, *, path: str = "/push") -> dict[str, Any]:
        assert contract.endpoint is not None
        own: dict[str, Any] = contract.body.get("pushConfig", {})
        return {**own, "pushEndpoint": contract.endpoint.url.replace("/push", path)}

    def modify_push_config(self, contract: Contract, config: dict[str, Any]) -> None:
        self.caller.until_done("POST", f"{contract.path}:modifyPushConfig", {"pushConfig": config})

    def endpoints(self) -> Iterator[Endpoint]:
        return (it.endpoint for it in self.contracts.values() if isinstance(it.endpoint, Endpoint))

    def _start_endpoint(self, contract: Contract) -> None:
        common: dict[str, Any] = {"seed": self._seed, "calm": self.calm}
        if contract.name == "liar":
            contract.endpoint = self._stack.enter_context(Liar(contract.name, self.ledger, **common))
        elif contract.topic == BULK:
            contract.endpoint = self._stack.enter_context(Quick(contract.name, self.ledger))
        elif contract.behaviour is not None:
            signed = "oidcToken" in contract.body.get("pushConfig", {})
            contract.endpoint = self._stack.enter_context(
                Endpoint(
                    contract.name,
                    contract.behaviour,
                    self.ledger,
                    poison="deadLetterPolicy" in contract.body,
                    key_of=self._key_of if signed else None,
                    audience=AUDIENCE,
                    attempts=MAX_ATTEMPTS if contract.topic == LETTERS else 0,
                    **common,
                )
            )

    def _start_pullers(self) -> None:
        common: dict[str, Any] = {"seed": self._seed, "calm": self.calm}
        self.pullers += [GrpcPuller("once", self.ledger, number=number, **common) for number in range(2)]
        self.pullers.append(RestPuller("pulled", self.ledger, addresses=self._addresses, **common))
        self.pullers.append(StreamPuller("streamed", self.ledger, **common))
        self.pullers.append(StreamPuller("streamed-once", self.ledger, exactly_once=True, **common))
        for puller in self.pullers:
            puller.start()

    def _key_of(self, key_id: str) -> jwt.PyJWK:
        """Return a public key that signs pushes. For one that is unknown they are fetched, as receivers do."""
        if key_id not in self._keys:
            caller = Caller(self._addresses)
            keys = jwt.PyJWKSet.from_dict(caller.until_done("GET", "/oauth2/v3/certs").json())
            caller.close()
            self._keys |= {str(key.key_id): key for key in keys.keys}
        return self._keys[key_id]
