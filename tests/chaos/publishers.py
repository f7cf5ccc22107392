"""The publishers of a storm. They record what was acknowledged to them, and nothing else."""

from __future__ import annotations

import base64
import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import Any

import requests
from google.api_core import exceptions
from google.cloud import pubsub_v1

from tests.chaos.caller import TIMEOUT_SECONDS, Caller
from tests.chaos.ledger import Ledger, Published, now

PROJECT = "projects/storm"
COLOURS = ("red", "green", "blue")
BATCH = 10
#: One message in so many is refused by the subscription with a dead-letter policy.
POISON_EVERY = 40
#: How long the official client repeats a publish whose outcome it does not know.
CLIENT_SECONDS = 60.0


class Publisher:
    """A thread that publishes messages at a rate until it is told to stop. The seed decides what it publishes.

    It has keys of its own, and shares others. Publishers with shared keys publish at the same moments.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        *,
        topic: str,
        rate: float,
        seed: int,
        keys: int = 0,
        shared: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.topic = topic
        self.ledger = ledger
        self.stopping = threading.Event()
        self._rate = rate
        self._shared = shared
        self._keys = [*(f"{name}-{number}" for number in range(keys)), *shared]
        self._dice = random.Random(f"{seed} {name}")
        self._numbers = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        due = now()
        while not self.stopping.is_set():
            count = self.publish()
            due = ceil(now() * self._rate) / self._rate if self._shared else max(due, now() - 1) + count / self._rate
            self.stopping.wait(max(due - now(), 0))
        self.finish()

    def publish(self) -> int:
        """Publish something, and return how many messages it was."""
        raise NotImplementedError

    def finish(self) -> None:
        """Release what the thread holds."""

    def messages(self, count: int) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the tags and the attributes of new messages."""
        for number in itertools.islice(self._numbers, count):
            attributes = {"colour": self._dice.choice(COLOURS)}
            if self._dice.randrange(POISON_EVERY) == 0:
                attributes["poison"] = "yes"
            yield f"{self.name}:{number}", attributes

    def record(
        self, ids: Sequence[str], batch: Sequence[tuple[str, dict[str, str]]], *, key: str, began: float
    ) -> None:
        answered = now()
        for message_id, (tag, its) in zip(ids, batch, strict=True):
            self.ledger.published.append(Published(message_id, self.topic, key, its, self.name, tag, began, answered))

    def record_failure(self) -> None:
        self.ledger.failed_publishes[self.name] += 1


class RestPublisher(Publisher):
    """Publishes over REST: batches without a key, or, with keys, one message a request unless a batch is asked for.

    What was refused or got no answer is published again, so that the messages of a key are acknowledged in order.
    """

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        addresses: Sequence[str],
        *,
        first: int,
        batch: int = 0,
        token: str = "",
        timeout_seconds: float = TIMEOUT_SECONDS,
        **more: Any,
    ) -> None:
        super().__init__(name, ledger, **more)
        self._caller = Caller(addresses, token=token, timeout_seconds=timeout_seconds)
        self._batch = batch or (1 if self._keys else BATCH)
        #: A publisher stays with its server while that answers.
        self._server = first

    def use(self, server: int) -> None:
        """Publish to the server with that number from the next request on."""
        self._server = server

    def publish(self) -> int:
        key = self._dice.choice(self._keys) if self._keys else ""
        batch = list(self.messages(self._batch))
        ordering = {"orderingKey": key} if key else {}
        body = [
            {"data": base64.b64encode(tag.encode()).decode(), "attributes": attributes, **ordering}
            for tag, attributes in batch
        ]
        while not self.stopping.is_set():
            began = now()
            try:
                answer = self._caller.once(
                    "POST", f"/v1/{PROJECT}/topics/{self.topic}:publish", {"messages": body}, number=self._server
                )
                if answer.status_code == 200:
                    self.record(answer.json()["messageIds"], batch, key=key, began=began)
                    return len(batch)
            except requests.RequestException:
                pass
            self._server += 1
            self.record_failure()
            self.stopping.wait(0.1)
        return len(batch)

    def finish(self) -> None:
        self._caller.close()


class ClientPublisher(Publisher):
    """Publishes by Google's client, which batches and retries by itself; PUBSUB_EMULATOR_HOST has the address."""

    def __init__(self, name: str, ledger: Ledger, *, timeout_seconds: float = CLIENT_SECONDS, **more: Any) -> None:
        super().__init__(name, ledger, **more)
        self._timeout_seconds = timeout_seconds
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        self._client = pubsub_v1.PublisherClient(publisher_options=options)
        self._path = f"{PROJECT}/topics/{self.topic}"

    def publish(self) -> int:
        key = self._dice.choice(self._keys) if self._keys and self._dice.random() < 0.5 else ""
        batch = list(self.messages(5))
        began = now()
        futures = [self._client.publish(self._path, tag.encode(), ordering_key=key, **its) for tag, its in batch]
        for future, message in zip(futures, batch, strict=True):
            try:
                self.record([future.result(timeout=self._timeout_seconds)], [message], key=key, began=began)
            except (exceptions.GoogleAPIError, TimeoutError, RuntimeError):
                # Once a publish of a key has failed, the client refuses the later ones of the key.
                self.record_failure()
                if key:
                    time.sleep(0.1)
                    with suppress(RuntimeError):  # it may not have noticed yet
                        self._client.resume_publish(self._path, key)
        return len(batch)

    def finish(self) -> None:
        self._client.stop()
        self._client.transport.close()
