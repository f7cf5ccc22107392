"""StreamingPull: messages flow to the client as it acknowledges them, within the limits it set.

Two sides work on one `Stream`: what the client sends is taken as it comes, and messages are leased while there is
room. A stream that ends, however it ends, gives back the messages that its client never touched: those it neither
acknowledged nor modified the deadline of. The other leases go on, as clients acknowledge through unary calls as well.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from google.pubsub_v1.types import pubsub

from deliveries import pull
from deliveries.rpc.bell import bell
from deliveries.rpc.flow import Outstanding
from deliveries.rpc.protobuf import received_messages
from deliveries.rpc.streams import listening
from pushhub.common.errors import FailedPrecondition, InvalidArgument, Unauthenticated, Unavailable
from subscriptions.models import Subscription
from subscriptions.rpc.calls import Bidirectional, Call, Method, in_thread, stopping
from subscriptions.selectors import subscription_get

Request = pubsub.StreamingPullRequest.pb()
Response = pubsub.StreamingPullResponse.pb()

LEAST_DEADLINE_SECONDS = 10
#: An answer is sent when its messages reach this; clients that set no limit of their own take 4 MB at once.
RESPONSE_BYTES = 3_000_000
#: The right to pull may be taken away while a stream is open.
AUTHORIZE_SECONDS = 5.0
#: A client that stops sends its last acknowledgements after it has ended its stream. They are waited for.
GRACE_SECONDS = 1.0

#: Keeps the tasks that run when their stream has ended.
_giving_back: set[asyncio.Task[None]] = set()


class Stream:
    """One open stream."""

    def __init__(self, call: Call, first: Any, subscription: Subscription) -> None:
        self.subscription = subscription
        self._call = call
        self._first = first
        self._lease_seconds: int = first.stream_ack_deadline_seconds
        self._outstanding = Outstanding(
            max_messages=first.max_outstanding_messages, max_bytes=first.max_outstanding_bytes
        )
        #: What the client is to be told beside messages.
        self._notes: asyncio.Queue[Any] = asyncio.Queue()
        self._moved = asyncio.Event()
        #: The last request for messages: a stream may end before it has the answer.
        self._leasing: asyncio.Future[list[pull.Received]] | None = None
        self._authorized_at = time.monotonic()

    async def answers(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Every answer to the client, until either side ends the stream."""
        await self._take(self._first)
        hearing = asyncio.create_task(self._hear(requests))
        try:
            with listening(self.subscription.pk, self._changed):
                while not hearing.done():
                    if stopping().is_set():
                        raise Unavailable("The server is going away; open another stream.")
                    for answer in [*self._noted(), *await self._messages()]:
                        yield answer
            hearing.result()
        finally:
            hearing.cancel()
            with suppress(asyncio.CancelledError):
                await hearing
            giving_back = asyncio.create_task(self._give_back())
            _giving_back.add(giving_back)
            giving_back.add_done_callback(_giving_back.discard)

    async def _give_back(self) -> None:
        """Give back what the client never touched, also what the stream had leased and not sent yet."""
        with suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(stopping().wait(), GRACE_SECONDS)
        ends_ms = self._outstanding.ends_ms()
        if self._leasing is not None:
            await asyncio.wait([self._leasing])
            if not self._leasing.exception():
                ends_ms |= {message.ack_id: message.ends_ms for message in self._leasing.result()}
        if ends_ms:
            await in_thread(_given_back, self.subscription, ends_ms)

    async def _hear(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                for field in ("subscription", "client_id", "max_outstanding_messages", "max_outstanding_bytes"):
                    if getattr(request, field):
                        raise _invalid(field, "must be set in the first request of a stream only")
                await self._take(request)
        finally:
            self._moved.set()

    async def _take(self, request: Any) -> None:
        """Whatever a request says: a new deadline, acknowledgements, deadlines of single messages."""
        if request.stream_ack_deadline_seconds:
            self._lease_seconds = _deadline(request.stream_ack_deadline_seconds)
        changes = _changes(request)
        if request.ack_ids:
            await self._acknowledge(list(request.ack_ids))
        for seconds, ack_ids in changes.items():
            await self._modify(ack_ids, seconds)
        if not request.ack_ids and not changes and request is not self._first and self._first.protocol_version:
            self._note(Response())  # the client asks whether anybody is there
        self._moved.set()

    def _changed(self, ack_ids: Sequence[str], seconds: int) -> None:
        """Leases go on for so long, or are gone."""
        if seconds:
            self._outstanding.extended(ack_ids, seconds)
        else:
            self._outstanding.gone(ack_ids)
            self._moved.set()

    async def _acknowledge(self, ack_ids: list[str]) -> None:
        lost = await in_thread(_acknowledged, self.subscription, ack_ids)
        self._changed(ack_ids, 0)
        if self.subscription.enable_exactly_once_delivery:
            kept = [one for one in ack_ids if one not in lost]
            self._note(Response(acknowledge_confirmation={"ack_ids": kept, "invalid_ack_ids": sorted(lost)}))

    async def _modify(self, ack_ids: list[str], seconds: int) -> None:
        lost = await in_thread(_modified, self.subscription, ack_ids, seconds)
        self._changed([one for one in ack_ids if one not in lost], seconds)
        if self.subscription.enable_exactly_once_delivery:
            kept = [one for one in ack_ids if one not in lost]
            note = Response(modify_ack_deadline_confirmation={"ack_ids": kept, "invalid_ack_ids": sorted(lost)})
            self._note(note)

    def _note(self, answer: Any) -> None:
        self._notes.put_nowait(answer)
        self._moved.set()

    def _noted(self) -> list[Any]:
        return [self._notes.get_nowait() for _ in range(self._notes.qsize())]

    async def _messages(self) -> list[Any]:
        """The next messages, in answers of moderate size. Without any it waits a moment and returns nothing."""
        self._moved.clear()
        await self._authorize()
        room, room_bytes = self._outstanding.room()
        if room:
            leasing = in_thread(_leased, self.subscription, room, room_bytes, self._lease_seconds)
            self._leasing = asyncio.ensure_future(leasing)
            received = await asyncio.shield(self._leasing)
            if received:
                return self._answers_of(received)
        if self._notes.empty() and not await self._wait(until_room=not room) and not room:
            await self._look()
        return []

    async def _look(self) -> None:
        """Ask Redis which leases are gone: they may have been acknowledged through another process."""
        ack_ids = self._outstanding.ack_ids()
        self._changed(list(await in_thread(_gone, self.subscription, ack_ids)), 0)

    def _answers_of(self, received: Sequence[pull.Received]) -> list[Any]:
        answers, size = [self._answer()], 0
        for lease, message in zip(received, received_messages(received), strict=True):
            length = message.ByteSize()
            if size and size + length > RESPONSE_BYTES:
                answers.append(self._answer())
                size = 0
            size += length
            answers[-1].received_messages.append(message)
            self._outstanding.sent(message.ack_id, length, self._lease_seconds, ends_ms=lease.ends_ms)
        return answers

    def _answer(self) -> Any:
        return Response(
            subscription_properties={
                "exactly_once_delivery_enabled": self.subscription.enable_exactly_once_delivery,
                "message_ordering_enabled": self.subscription.enable_message_ordering,
            }
        )

    async def _wait(self, *, until_room: bool) -> bool:
        """For a message or, without room for one, for what the client says; not for long. Whether anything came."""
        seconds = min(self._outstanding.next_lapse(), 1.0)
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._moved.wait())]
        if not until_room:
            waits.append(asyncio.ensure_future(bell().wait(self.subscription.pk, seconds=1.0)))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return self._moved.is_set()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _authorize(self) -> None:
        """Once in a while: whether the caller still may. Whose token has ended opens a new stream, or is refused it."""
        if time.monotonic() - self._authorized_at < AUTHORIZE_SECONDS:
            return
        self._authorized_at = time.monotonic()
        try:
            await in_thread(self._call.authorized, self._first)
        except Unauthenticated:
            raise Unavailable("The stream's credentials have ended; open another.") from None
        self.subscription = await in_thread(_subscription, self._first.subscription)


async def streaming_pull(requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
    """The answers of one stream; raises what ends it."""
    first = await anext(requests, None)
    if first is None:
        return
    if not first.subscription:
        raise _invalid("subscription", "must be set in the first request of a stream")
    _deadline(first.stream_ack_deadline_seconds)
    await in_thread(call.authorized, first)
    stream = Stream(call, first, await in_thread(_subscription, first.subscription))
    async for answer in stream.answers(requests):
        yield answer


def _deadline(seconds: int) -> int:
    if not LEAST_DEADLINE_SECONDS <= seconds <= pull.MAX_ACK_DEADLINE_SECONDS:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between "
            f"{LEAST_DEADLINE_SECONDS} and {pull.MAX_ACK_DEADLINE_SECONDS} seconds.",
            field="streamAckDeadlineSeconds",
        )
    return seconds


def _changes(request: Any) -> dict[int, list[str]]:
    """The ack ids whose deadlines are modified, by seconds."""
    if len(request.modify_deadline_seconds) != len(request.modify_deadline_ack_ids):
        raise _invalid("modify_deadline_ack_ids", "must be as many as modify_deadline_seconds")
    found: dict[int, list[str]] = defaultdict(list)
    for seconds, ack_id in zip(request.modify_deadline_seconds, request.modify_deadline_ack_ids, strict=True):
        found[seconds].append(ack_id)
    return found


def _invalid(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"You have passed an invalid argument to the service (argument={field}): it {why}.", field=field
    )


def _subscription(name: str) -> Subscription:
    return subscription_get(name=name)


def _leased(subscription: Subscription, count: int, max_bytes: int, seconds: int) -> list[pull.Received]:
    return pull.messages_pull(subscription=subscription, max_messages=count, max_bytes=max_bytes, lease_seconds=seconds)


def _given_back(subscription: Subscription, ends_ms: dict[str, int]) -> None:
    pull.leases_give_back(subscription=subscription, ends_ms=ends_ms)


def _acknowledged(subscription: Subscription, ack_ids: list[str]) -> set[str]:
    """Those of the ack ids whose leases were lost, which matters where delivery is exactly once."""
    try:
        pull.messages_acknowledge(subscription=subscription, ack_ids=ack_ids)
    except FailedPrecondition as error:
        return _lost(error)
    return set()


def _modified(subscription: Subscription, ack_ids: list[str], seconds: int) -> set[str]:
    try:
        pull.ack_deadlines_modify(subscription=subscription, ack_ids=ack_ids, seconds=seconds)
    except FailedPrecondition as error:
        return _lost(error)
    return set()


def _gone(subscription: Subscription, ack_ids: list[str]) -> set[str]:
    return pull.leases_lost(subscription=subscription, ack_ids=ack_ids) if ack_ids else set()


def _lost(error: FailedPrecondition) -> set[str]:
    if not error.details:
        raise error
    return set(error.details[0]["metadata"])


SUBSCRIBER: dict[str, Method] = {"StreamingPull": Bidirectional(Request, Response, streaming_pull)}
