"""Leases the messages of a subscription in the driver: streams bring them, and a thread extends their leases.

A message *waits* in the buffer of its stream, is *held* for a batch of Spark's, and then acknowledged. Whatever ends
the driver, PushHub gives out again what was not acknowledged. A message whose lease nobody has touched comes again at
once, and that counts no attempt; the others come again after their deadline.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deliveries.pipeline.datasource.connection import Connection, may_pass, patient
from pushhub.common.batches import gather

logger = logging.getLogger(__name__)

#: The ack deadline of the streams, and how often it is extended.
LEASE_SECONDS = 30
EXTEND_SECONDS = 10.0
#: A request's ack ids may have 524,288 bytes together.
ACK_IDS_BYTES = 400_000
#: The time between two attempts to open a stream.
REOPEN_SECONDS = 1.0
#: For a request that is made again in time, or can be left out.
CALL_SECONDS = 10.0
#: How long threads may take to end.
END_SECONDS = 60.0
#: The reason of the error that names leases which have ended, with exactly-once delivery.
LAPSED = "EXACTLY_ONCE_ACKID_FAILURE"


@dataclass(frozen=True, slots=True)
class Share:
    """What a stream adds to a batch at most: a number of messages, and bytes, but at least one message."""

    messages: int
    bytes: int


class Leases:
    """The leased messages of a subscription. `close` stops its threads."""

    def __init__(self, connection: Connection, subscription: str, *, streams: int, share: Share, ahead: int) -> None:
        self._client = connection.subscriber()
        self._subscription = subscription
        self._held: set[str] = set()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._streams = [_Stream(self._client, subscription, share, ahead, self._changed) for _ in range(streams)]
        self._keeper = threading.Thread(target=self._extend_until_closed, name="pushhub-leases", daemon=True)
        self._keeper.start()

    def take(self, *, seconds: float) -> list[list[Any]]:
        """Return messages of each stream that has any, and hold them. Wait up to `seconds` for the first one.

        Raises the error with which PushHub refused a stream.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(stream.waiting or stream.error for stream in self._streams), seconds)
            for stream in self._streams:
                if stream.error is not None:
                    raise stream.error
            taken = [part for stream in self._streams if (part := stream.take())]
            self._held.update(message.ack_id for part in taken for message in part)
        return taken

    def touch(self, ack_ids: Sequence[str]) -> None:
        """Extend leases, and tell PushHub by this that their messages are at work: a stream may break now."""
        self._modify(ack_ids, LEASE_SECONDS)

    def give_back(self, ack_ids: Sequence[str]) -> None:
        """Let messages that were held come again at once."""
        with self._changed:
            self._held.difference_update(ack_ids)
        self._modify(ack_ids, 0)

    def acknowledge(self, ack_ids: Sequence[str]) -> None:
        """Acknowledge messages, and wait until PushHub has stored that. Leases that have lapsed don't matter."""
        from google.api_core.exceptions import InvalidArgument

        for some in _portions(ack_ids):
            try:
                self._client.acknowledge(subscription=self._subscription, ack_ids=some, retry=patient())
            except InvalidArgument as error:
                if error.reason != LAPSED:
                    raise
                # With exactly-once delivery, a lease that has lapsed is an error. Its message comes again.
                logger.warning("some acknowledgements came too late: %s", error.message)
        with self._changed:
            self._held.difference_update(ack_ids)

    def close(self) -> None:
        """End the streams, and with them the leases of what nobody has touched. What is held lapses."""
        self._closed.set()
        for stream in self._streams:
            stream.close()
        self._keeper.join(END_SECONDS)
        self._client.transport.close()

    def _modify(self, ack_ids: Sequence[str], seconds: int) -> None:
        from google.api_core.exceptions import GoogleAPICallError

        for some in _portions(ack_ids):
            try:
                self._client.modify_ack_deadline(
                    subscription=self._subscription,
                    ack_ids=some,
                    ack_deadline_seconds=seconds,
                    retry=None,
                    timeout=CALL_SECONDS,
                )
            except GoogleAPICallError as error:
                # A lease that lapses costs a repetition and no message, so the query goes on.
                logger.warning("leases were not changed, out of %d: %s", len(some), error.message)

    def _extend_until_closed(self) -> None:
        while not self._closed.wait(EXTEND_SECONDS):
            with self._changed:
                waiting = [message.ack_id for stream in self._streams for message in stream.waiting]
                ack_ids = [*self._held, *waiting]
            self.touch(ack_ids)


class _Stream:
    """One StreamingPull, which a thread reads and opens again when it breaks."""

    def __init__(self, client: Any, subscription: str, share: Share, ahead: int, changed: threading.Condition) -> None:
        self.waiting: deque[Any] = deque()
        self.error: Exception | None = None
        self._client = client
        self._share = share
        self._changed = changed
        self._closed = threading.Event()
        self._call: Any = None
        self._first = {
            "subscription": subscription,
            "stream_ack_deadline_seconds": LEASE_SECONDS,
            "max_outstanding_messages": ahead * share.messages,
            "max_outstanding_bytes": ahead * share.bytes,
        }
        self._thread = threading.Thread(target=self._read_until_closed, name="pushhub-stream", daemon=True)
        self._thread.start()

    def take(self) -> list[Any]:
        taken: list[Any] = []
        size = 0
        while self.waiting and len(taken) < self._share.messages:
            size += self.waiting[0].message.ByteSize()
            if taken and size > self._share.bytes:
                break
            taken.append(self.waiting.popleft())
        return taken

    def close(self) -> None:
        self._closed.set()
        if self._call is not None:
            self._call.cancel()
        self._thread.join(END_SECONDS)

    def _read_until_closed(self) -> None:
        while not self._closed.is_set():
            try:
                self._read()
            except Exception as error:
                if not self._may_reopen(error):
                    return
            # PushHub gives out again what the broken stream has brought and nobody has touched.
            with self._changed:
                self.waiting.clear()
            self._closed.wait(REOPEN_SECONDS)

    def _may_reopen(self, error: Exception) -> bool:
        """Return whether the stream may be opened again. If not, the query fails with the error, or has ended."""
        if self._closed.is_set():
            return False
        if may_pass(error):
            logger.warning("a stream of %s broke: %s", self._first["subscription"], error)
            return True
        with self._changed:
            self.error = error
            self._changed.notify_all()
        return False

    def _read(self) -> None:
        ended = threading.Event()
        try:
            self._call = self._client.streaming_pull(requests=self._requests(ended), retry=None, timeout=None)
            if self._closed.is_set():
                self._call.cancel()
            for response in self._call:
                received = type(response).pb(response).received_messages
                with self._changed:
                    self.waiting.extend(received)
                    self._changed.notify_all()
        finally:
            ended.set()

    def _requests(self, ended: threading.Event) -> Iterator[Any]:
        from google.pubsub_v1.types import StreamingPullRequest

        yield StreamingPullRequest(self._first)
        # The server would end the stream with its requests.
        ended.wait()


def _portions(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    return gather(ack_ids, most=len(ack_ids), size_of=len, size=ACK_IDS_BYTES)
