"""The push endpoints of a storm: they ack, nack, flap, hang, answer late, cut and lie, as the seed says."""

from __future__ import annotations

import asyncio
import base64
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import jwt
import orjson

from tests.chaos.ledger import Delivery, Ledger, now
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer
from tests.receiver import Answer, Receiver, Request

ACK = Answer(204)
#: Chooses the answer to the delivery of a tag. `acks` of the result says whether PushHub has to count it as an ack.
Behaviour = Callable[[random.Random, str], Answer]
PROCESSING = 102
ACKS = frozenset({PROCESSING, 200, 201, 202, 204})
#: Longer than the ack deadline of 10 s.
HANG_SECONDS = 12.0
TIMES_SECONDS = 300.0


def healthy(dice: random.Random, tag: str) -> Answer:
    return ACK


class Slow:
    """So slow that two requests at a time take twice what is published, but for what piled up during the faults."""

    def __init__(self, rate: float) -> None:
        self._seconds = 1 / rate

    def __call__(self, dice: random.Random, tag: str) -> Answer:
        return Answer(204, delay_seconds=self._seconds)


def moody(dice: random.Random, tag: str) -> Answer:
    """One delivery in ten is refused."""
    return dice.choices([ACK, Answer(500), Answer(429, headers={"Retry-After": "1"})], [90, 8, 2])[0]


def rough(dice: random.Random, tag: str) -> Answer:
    """It also hangs, answers late, cuts, and sends what looks like an ack and is none."""
    late = Answer(204, delay_seconds=dice.uniform(0.5, 3))
    lies = [Answer(203), Answer(299), Answer(301, headers={"Location": "/ok"}), Answer(500, interim=(PROCESSING,))]
    hang = Answer(204, delay_seconds=HANG_SECONDS, hang_up=True)
    return dice.choices([ACK, hang, late, Answer(hang_up=True), dice.choice(lies)], [84, 1, 5, 5, 5])[0]


class Flapping:
    """Up and down in turns of some seconds; a request in the dark is refused."""

    def __init__(self, seed: str) -> None:
        self._began = now()
        dice = random.Random(seed)
        self._up, self._down = dice.uniform(2, 5), dice.uniform(1, 4)

    def __call__(self, dice: random.Random, tag: str) -> Answer:
        is_up = (now() - self._began) % (self._up + self._down) < self._up
        return ACK if is_up else Answer(503)


class Times:
    """Bad and good times in turns. The first bad one is longer than most storms.

    In a soak, the backlog of a bad time is delivered in the good one, so that tables stay small.
    """

    def __init__(self) -> None:
        self._began = now()

    def are_bad(self) -> bool:
        return (now() - self._began) // TIMES_SECONDS % 2 == 0


class Dead:
    """Refuses everything in bad times."""

    def __init__(self) -> None:
        self._times = Times()

    def __call__(self, dice: random.Random, tag: str) -> Answer:
        return Answer(503) if self._times.are_bad() else ACK


class Stuck:
    """Refuses the messages of some publishers, and so of some ordering keys, in bad times."""

    def __init__(self, *publishers: str) -> None:
        self._publishers = publishers
        self._times = Times()

    def __call__(self, dice: random.Random, tag: str) -> Answer:
        return Answer(500) if tag.startswith(self._publishers) and self._times.are_bad() else ACK


class Endpoint:
    """The endpoint of one subscription. Every delivery goes into the ledger."""

    def __init__(
        self,
        subscription: str,
        behaviour: Behaviour,
        ledger: Ledger,
        *,
        seed: int,
        calm: threading.Event,
        poison: bool = False,
        key_of: Callable[[str], jwt.PyJWK] | None = None,
        audience: str = "",
        attempts: int = 0,
    ) -> None:
        """Set up an endpoint. Dead letters come to one with `attempts`: how many they have to have had."""
        self.subscription = subscription
        self.behaviour = behaviour
        self._ledger = ledger
        self._seed = seed
        self._calm = calm
        self._poison = poison
        self._key_of = key_of
        self._audience = audience
        self._attempts = attempts
        self._seen: Counter[str] = Counter()
        self.receiver = Receiver(self._answer, keeps=False)

    def __enter__(self) -> Self:
        self.receiver.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.receiver.__exit__(kind, error, _)

    @property
    def url(self) -> str:
        return self.receiver.url

    def _answer(self, request: Request) -> Answer:
        delivery, attributes, tag = parsed(self.subscription, request.body, request.headers)
        if self._key_of is not None:
            self._check_token(request, delivery)
        delivery.tag = tag
        if self._attempts:
            self._check_letter(delivery, attributes)
        answer = self.decide(tag, attributes)
        if answer.status in ACKS and not answer.hang_up and not answer.interim:
            delivery.acked = delivery.at + answer.delay_seconds
        delivery.seems_acked = PROCESSING in answer.interim
        self._ledger.deliveries.append(delivery)
        return answer

    def decide(self, tag: str, attributes: dict[str, str]) -> Answer:
        """Return the answer to a message. It follows from the seed, the message and how often the message came."""
        self._seen[tag] += 1
        if self._poison and attributes.get("poison"):
            return Answer(500)
        if self._calm.is_set() and not (isinstance(self.behaviour, Slow) and now() > self._ledger.calm_since):
            return ACK
        return self.behaviour(random.Random(f"{self._seed} {self.subscription} {tag} {self._seen[tag]}"), tag)

    def _check_letter(self, delivery: Delivery, attributes: dict[str, str]) -> None:
        """Note a dead letter of a message that was never refused, or after another number of attempts."""
        count = attributes.get("CloudPubSubDeadLetterSourceDeliveryCount")
        if count != str(self._attempts) or not attributes.get("poison"):
            self._ledger.outrages.append(f"{delivery.tag} was dead-lettered after {count} attempts")

    def _check_token(self, request: Request, delivery: Delivery) -> None:
        """Note a push without a valid token."""
        assert self._key_of is not None
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        try:
            key = self._key_of(jwt.get_unverified_header(token)["kid"])
            # The clock of the process that signed may be wrong on purpose.
            options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
            jwt.decode(token, key, algorithms=["RS256"], audience=self._audience, options=options)
        except (jwt.PyJWTError, KeyError) as error:
            self._ledger.outrages.append(f"{delivery.message_id} came without a valid token: {error!r}")


class Quick:
    """An endpoint on raw sockets that acks everything, for many deliveries a second."""

    def __init__(self, subscription: str, ledger: Ledger) -> None:
        self.subscription = subscription
        self.url = ""
        self._ledger = ledger
        self._loop = asyncio.new_event_loop()
        self._started: Future[str] = Future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        self.url = self._started.result(timeout=30)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with Misbehaving(self._converse) as server:
            self._started.set_result(server.url)
            await self._stop.wait()

    async def _converse(self, peer: Peer) -> None:
        while True:
            body = (await peer.request()).partition(b"\r\n\r\n")[2]
            peer._server.requests.clear()
            peer._server.heads.clear()
            delivery, _, tag = parsed(self.subscription, body, {})
            lie = self._lie(tag)
            if lie in ("", "surplus"):
                delivery.acked = delivery.at
            self._ledger.deliveries.append(delivery)
            if lie == "reset":
                peer.reset()
                return
            await peer.send(ANSWERS[lie])
            if lie:
                return

    def _lie(self, tag: str) -> str:
        """Return the lie with which a message is answered, or ""."""
        return ""


class Liar(Quick):
    """In bad times it answers with broken HTTP, half answers, garbage and resets."""

    def __init__(self, subscription: str, ledger: Ledger, *, seed: int, calm: threading.Event) -> None:
        super().__init__(subscription, ledger)
        self._seed = seed
        self._calm = calm
        self._times = Times()
        self._seen: Counter[str] = Counter()

    def _lie(self, tag: str) -> str:
        self._seen[tag] += 1
        dice = random.Random(f"{self._seed} {self.subscription} {tag} {self._seen[tag]}")
        lies = self._times.are_bad() and not self._calm.is_set() and dice.random() <= 0.3
        return dice.choice(LIES) if lies else ""


ANSWERS = {
    "": NO_CONTENT,
    "surplus": NO_CONTENT + b"HTTP/1.1 500 Oh\r\n\r\n",
    "half": b"HTTP/1.1 20",
    "garbage": b"\x16\x03\x01 200 OK\r\n\r\n",
    "short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "silent": b"",
}
LIES = [*(name for name in ANSWERS if name), "reset"]


def parsed(subscription: str, body: bytes, headers: dict[str, str]) -> tuple[Delivery, dict[str, str], str]:
    """Return the delivery of a push request, the message's attributes, and the tag of its publisher."""
    at = now()
    if "x-goog-pubsub-message-id" in headers:
        return Delivery(subscription, headers["x-goog-pubsub-message-id"], at), {}, body.decode()
    envelope = orjson.loads(body)
    message = envelope["message"]
    delivery = Delivery(subscription, message["messageId"], at, attempt=envelope.get("deliveryAttempt", 0))
    return delivery, message.get("attributes", {}), base64.b64decode(message["data"]).decode()
