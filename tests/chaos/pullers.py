"""The pullers of a storm: calls of Pull over gRPC and REST, and streams of Google's client."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import requests
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.cloud.pubsub_v1.subscriber.message import Message

from tests.chaos.caller import Caller
from tests.chaos.ledger import Delivery, Ledger, now
from tests.chaos.publishers import PROJECT

PULLED = 20
CALL_SECONDS = 8.0
#: How often the acknowledgement of a lease is repeated that got no answer.
TRIES = 3


class Puller:
    """A thread that pulls until it is told to stop: it acks, nacks and lets leases lapse, as the seed says."""

    def __init__(self, subscription: str, ledger: Ledger, *, seed: int, calm: threading.Event, number: int = 0) -> None:
        self.subscription = subscription
        self.ledger = ledger
        self.path = f"{PROJECT}/subscriptions/{subscription}"
        self.stopping = threading.Event()
        self._seed = seed
        self._calm = calm
        self._seen: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=f"{subscription}-{number}")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self.stopping.is_set():
            self.pull()
        self.finish()

    def pull(self) -> None:
        """Pull once, or for a while."""
        raise NotImplementedError

    def finish(self) -> None:
        """Release what the thread holds."""

    def choose(self, tag: str) -> str:
        """Return what becomes of a message: `ack`, `nack` or `lapse`."""
        self._seen[tag] += 1
        dice = random.Random(f"{self._seed} {self.subscription} {tag} {self._seen[tag]}")
        return "ack" if self._calm.is_set() else dice.choices(["ack", "nack", "lapse"], [93, 5, 2])[0]

    def pull_failed(self, began: float) -> None:
        self.ledger.failed_pulls.append((self.subscription, began, now()))
        self.stopping.wait(0.2)


class GrpcPuller(Puller):
    """Pulls with exactly-once delivery. An ack is certain once the server has said OK to it."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._client = pubsub_v1.SubscriberClient()

    def pull(self) -> None:
        began = now()
        try:
            answer = self._client.pull(subscription=self.path, max_messages=PULLED, retry=None, timeout=CALL_SECONDS)
        except exceptions.GoogleAPIError:
            return self.pull_failed(began)
        at = now()
        for received in answer.received_messages:
            delivery = Delivery(self.subscription, received.message.message_id, at)
            self.ledger.deliveries.append(delivery)
            choice = self.choose(received.message.data.decode())
            if choice == "ack":
                self._acknowledge(delivery, received.ack_id)
            elif choice == "nack":
                self._nack(received.ack_id)
        return None

    def _acknowledge(self, delivery: Delivery, ack_id: str) -> None:
        delivery.acked = now()
        for number in range(TRIES):
            try:
                self._client.acknowledge(subscription=self.path, ack_ids=[ack_id], retry=None, timeout=CALL_SECONDS)
            except exceptions.InvalidArgument:
                # The lease has ended; if an earlier try got no answer, perhaps by that try.
                if number == 0:
                    delivery.acked = None
                return
            except exceptions.GoogleAPIError:
                self.stopping.wait(0.1)
            else:
                delivery.acked, delivery.certain = now(), True
                return

    def _nack(self, ack_id: str) -> None:
        with suppress(exceptions.GoogleAPIError):
            self._client.modify_ack_deadline(
                subscription=self.path, ack_ids=[ack_id], ack_deadline_seconds=0, retry=None, timeout=CALL_SECONDS
            )

    def finish(self) -> None:
        self._client.close()


class RestPuller(Puller):
    """Pulls over REST, from the two web servers in turn.

    It acknowledges in the order of delivery, what comes between two messages that it refuses by one call: a call for
    each message would be slower than a storm publishes.
    """

    def __init__(self, *arguments: Any, addresses: Sequence[str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._caller = Caller(addresses)

    def pull(self) -> None:
        began = now()
        try:
            answer = self._caller.once("POST", f"/v1/{self.path}:pull", {"maxMessages": PULLED})
            answer.raise_for_status()
        except requests.RequestException:
            return self.pull_failed(began)
        at = now()
        received = answer.json().get("receivedMessages", [])
        acked: list[str] = []
        for entry in received:
            self.ledger.deliveries.append(delivery := Delivery(self.subscription, entry["message"]["messageId"], at))
            choice = self.choose(entry["message"]["data"])
            if choice == "ack":
                delivery.acked = now()
                acked.append(entry["ackId"])
            elif choice == "nack":
                self._settle("acknowledge", acked)
                self._settle("modifyAckDeadline", [entry["ackId"]], ackDeadlineSeconds=0)
                acked = []
        self._settle("acknowledge", acked)
        if not received:
            self.stopping.wait(0.05)
        return None

    def _settle(self, method: str, ack_ids: Sequence[str], **more: int) -> None:
        for _ in range(TRIES if ack_ids else 0):
            try:
                if self._caller.once("POST", f"/v1/{self.path}:{method}", {"ackIds": ack_ids, **more}).ok:
                    return
            except requests.RequestException:
                pass
            self.stopping.wait(0.1)

    def finish(self) -> None:
        self._caller.close()


class StreamPuller(Puller):
    """Pulls by one stream of Google's client at a time. With exactly-once delivery it waits for each confirmation."""

    def __init__(self, *arguments: Any, exactly_once: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._client = pubsub_v1.SubscriberClient()
        self._exactly_once = exactly_once

    def pull(self) -> None:
        began = now()
        flow = pubsub_v1.types.FlowControl(max_messages=100)
        future = self._client.subscribe(self.path, self._received, flow_control=flow, await_callbacks_on_shutdown=True)
        while not self.stopping.is_set() and not future.done():
            self.stopping.wait(0.1)
        future.cancel()
        try:
            future.result(timeout=60)
        except (exceptions.GoogleAPIError, TimeoutError):
            self.pull_failed(began)

    def _received(self, message: Message) -> None:
        delivery = Delivery(self.subscription, message.message_id, now())
        self.ledger.deliveries.append(delivery)
        choice = self.choose(message.data.decode())
        if choice == "ack" and self._exactly_once:
            self._acknowledge(message, delivery)
        elif choice == "ack":
            delivery.acked = now()
            message.ack()
        else:
            # The client extends leases, so none lapses while it lives.
            message.nack()

    def _acknowledge(self, message: Message, delivery: Delivery) -> None:
        delivery.acked = now()
        try:
            message.ack_with_response().result(timeout=60)
        except (AcknowledgeError, TimeoutError):
            pass  # the client repeats acks, so one that it reports as failed may have been taken
        else:
            delivery.acked, delivery.certain = now(), True

    def finish(self) -> None:
        self._client.close()
