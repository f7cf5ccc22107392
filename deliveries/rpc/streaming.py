"""StreamingPull: messages flow to the client as it acknowledges them, within the limits it set.

Two tasks work on a `Stream`: one applies the client's requests as they come, the other leases messages while there is
room. When a stream ends, it gives back the messages that its client hasn't mentioned. The other leases go on, as the
client may still be working on their messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

import redis
from django.conf import settings
from django.db import DatabaseError

from deliveries.backlog.connection import redis_client
from deliveries.pull.deadlines import MAX_ACK_DEADLINE_SECONDS, give_back_leases, hand_over_keys, modify_ack_deadlines
from deliveries.pull.leases import ack_ids_ended
from deliveries.pull.leasing import Received, pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.rpc.bell import Rings, bell
from deliveries.rpc.messages import RESPONSE_BYTES, add_received_message
from deliveries.rpc.streams import Outstanding, give_back_later, listening
from deliveries.telemetry import kinds
from deliveries.telemetry.series import openstreams
from deliveries.telemetry.sinks.requests import count_request
from pushhub.common.errors import InvalidArgument, PushHubError, ResourceExhausted, Unauthenticated, Unavailable
from pushhub.common.pubsubtypes import pubsub
from subscriptions.models import Subscription
from subscriptions.quotas import check_streams
from subscriptions.rpc.calls import Bidirectional, Call, Method, in_thread, stopping
from subscriptions.selectors import read_subscription, resource_missing

logger = logging.getLogger(__name__)

Request = pubsub.StreamingPullRequest
Response = pubsub.StreamingPullResponse

LEAST_DEADLINE_SECONDS = 10
#: The fields that no later request may have (pubsub.proto, StreamingPullRequest). A client's id may come again.
FIRST_ONLY = ("subscription", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version")
#: A message has at most this many bytes beyond those of its data, its 100 attributes and its ordering key.
ENVELOPE_BYTES = 1500
#: So many bytes of responses besides messages wait for a client that doesn't read. Then its requests wait too. A client
#: that only pauses goes on: its requests may keep leases alive.
NOTE_BYTES = 1_000_000
#: What a response takes besides its content.
LEAST_NOTE_BYTES = 100
#: The right to pull may be taken away while a stream is open. It is checked so often, also on an idle stream.
AUTHORIZE_SECONDS = 5.0
#: A stream without room looks so often for leases that have ended.
LOOK_SECONDS = 1.0
#: A client that stops sends its last acknowledgements after it has ended its stream. They are waited for.
GRACE_SECONDS = 1.0


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
        #: Responses to the client besides messages.
        self._notes: list[Any] = []
        self._note_bytes = 0
        self._notes_taken = asyncio.Event()
        self._moved = asyncio.Event()
        self._authorized_at = self._looked_at = time.monotonic()
        #: Messages of an ordering key go to one stream at a time, also among those of a client.
        self._puller = _puller(first.client_id)
        #: The last lease call, which goes on in its thread when the stream is cancelled meanwhile.
        self._leasing: asyncio.Future[list[Received]] | None = None

    async def answers(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the responses to the client, until either side ends the stream."""
        await self._take(self._first)
        openstreams.opened(self.subscription.pk)
        hearing = asyncio.create_task(self._hear(requests))
        try:
            with listening(self.subscription.pk, self._changed):
                async with bell().listening(self.subscription.pk) as rings:
                    await in_thread(_check_room, self.subscription)
                    while not hearing.done():
                        if stopping().is_set():
                            raise Unavailable("The server is going away; open another stream.")
                        messages = await self._messages(rings)
                        for answer in [*self._noted(), *messages]:  # in this order: it may have waited for notes
                            yield answer
                    # A client that sends no more still waits for the confirmations of its last requests.
                    for answer in self._noted():
                        yield answer
            hearing.result()
        finally:
            hearing.cancel()
            openstreams.closed(self.subscription.pk)
            give_back_later(self._give_back())
            with suppress(asyncio.CancelledError):
                await hearing

    async def _give_back(self) -> None:
        """End the leases of all messages that the client has not mentioned, after its last requests."""
        await in_thread(openstreams.tell)
        with suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(stopping().wait(), GRACE_SECONDS)
        if self._leasing is not None:
            received = (await asyncio.gather(self._leasing, return_exceptions=True))[0]
            if isinstance(received, list):
                self._sent(received)
        await in_thread(_given_back, self.subscription, self._outstanding.untouched, self._puller)

    async def _hear(self, requests: AsyncIterator[Any]) -> None:
        try:
            async for request in requests:
                for field in FIRST_ONLY:
                    if getattr(request, field):
                        raise _invalid(field, "must be set in the first request of a stream only")
                await self._authorize()  # the other task doesn't while the client reads no responses
                await self._take(request)
                while self._note_bytes > NOTE_BYTES:
                    self._notes_taken.clear()
                    await self._notes_taken.wait()
        finally:
            self._moved.set()

    async def _take(self, request: Any) -> None:
        """Apply a request: the stream's deadline, acknowledgements, deadlines of single messages."""
        if request.stream_ack_deadline_seconds:
            self._lease_seconds = _deadline(request.stream_ack_deadline_seconds)
        changes = _changes(request)
        if request.ack_ids:
            count_request(kinds.STREAM_ACK_REQUESTS, self.subscription.pk)
            await self._acknowledge(list(request.ack_ids))
        if changes:
            count_request(kinds.STREAM_MODACK_REQUESTS, self.subscription.pk)
        for seconds, ack_ids in changes.items():
            await self._modify(ack_ids, seconds)
        if not request.ack_ids and not changes and request is not self._first and self._first.protocol_version:
            self._note(Response())  # the client asks whether the server is alive
        self._moved.set()

    def _changed(self, ack_ids: Sequence[str], seconds: int) -> None:
        """Note that leases last `seconds` from now on, or have ended if that is 0."""
        if seconds:
            self._outstanding.touched(ack_ids)
        else:
            self._outstanding.gone(ack_ids)
            self._moved.set()

    async def _acknowledge(self, ack_ids: list[str]) -> None:
        lost = await in_thread(_lost_by, acknowledge_messages, subscription=self.subscription, ack_ids=ack_ids)
        self._changed(ack_ids, 0)
        self._confirm("acknowledge_confirmation", ack_ids, lost)

    async def _modify(self, ack_ids: list[str], seconds: int) -> None:
        lost = await in_thread(
            _lost_by, modify_ack_deadlines, subscription=self.subscription, ack_ids=ack_ids, seconds=seconds
        )
        self._changed([ack_id for ack_id in ack_ids if ack_id not in lost], seconds)
        self._confirm("modify_ack_deadline_confirmation", ack_ids, lost)

    def _confirm(self, confirmation: str, ack_ids: list[str], lost: set[str]) -> None:
        if self.subscription.enable_exactly_once_delivery:
            kept = [ack_id for ack_id in ack_ids if ack_id not in lost]
            self._note(Response(**{confirmation: {"ack_ids": kept, "invalid_ack_ids": sorted(lost)}}))

    def _note(self, answer: Any) -> None:
        self._notes.append(answer)
        self._note_bytes += LEAST_NOTE_BYTES + answer.ByteSize()
        self._moved.set()

    def _noted(self) -> list[Any]:
        notes, self._notes, self._note_bytes = self._notes, [], 0
        self._notes_taken.set()
        return notes

    async def _messages(self, rings: Rings) -> list[Any]:
        """Return the next messages, in responses of moderate size. If there are none, wait, and return none."""
        self._moved.clear()
        await self._authorize()
        room, room_bytes = self._outstanding.room()
        if room:
            rings.hush()
            lease = in_thread(
                pull_messages,
                subscription=self.subscription,
                max_messages=room,
                max_bytes=room_bytes,
                lease_seconds=self._lease_seconds,
                puller=self._puller,
            )
            self._leasing = asyncio.ensure_future(lease)
            received = await asyncio.shield(self._leasing)
            self._leasing = None
            if received:
                self._sent(received)
                if not all(self._outstanding.room()):
                    rings.ring()  # there may be more, for another stream
                return self._answers_of(received)
        if not self._notes:
            await (self._rest(rings) if room else self._wait_for_room())
        return []

    def _sent(self, received: Sequence[Received]) -> None:
        for message in received:
            self._outstanding.sent(message.ack_id, message.size, message.ends_ms)

    async def _look(self) -> None:
        """Ask Redis which leases are gone: they may have lapsed, or been acknowledged through another process."""
        self._looked_at = time.monotonic()
        oldest = self._outstanding.oldest()
        self._changed(list(await in_thread(ack_ids_ended, subscription=self.subscription, ack_ids=oldest)), 0)

    def _answers_of(self, received: Sequence[Received]) -> list[Any]:
        """Return responses of moderate size with all of the messages."""
        responses, size = [self._response()], 0
        # To measure a message is to encode it. Few messages need that.
        are_small = sum(4 * message.size + ENVELOPE_BYTES for message in received) <= RESPONSE_BYTES
        for message in received:
            added = add_received_message(responses[-1], message)
            length = 0 if are_small else added.ByteSize()
            if size and size + length > RESPONSE_BYTES:
                del responses[-1].received_messages[-1]
                responses.append(self._response())
                add_received_message(responses[-1], message)
                size = 0
            size += length
        return responses

    def _response(self) -> Any:
        return Response(
            subscription_properties={
                "exactly_once_delivery_enabled": self.subscription.enable_exactly_once_delivery,
                "message_ordering_enabled": self.subscription.enable_message_ordering,
            }
        )

    async def _rest(self, rings: Rings) -> None:
        """Wait until there may be messages, or something else to do."""
        with rings.waking(self._moved.set):
            while not await self._moves(AUTHORIZE_SECONDS) and not stopping().is_set():
                await self._check_rights()

    async def _wait_for_room(self) -> None:
        """Wait for a request. Once a second, also while requests come, look for leases that have ended otherwise."""
        await self._moves(max(self._looked_at + LOOK_SECONDS - time.monotonic(), 0))
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            await self._look()

    async def _moves(self, seconds: float) -> bool:
        """Wait until something has happened, at most so long; return whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        return self._moved.is_set()

    async def _authorize(self) -> None:
        """Check now and then that the caller may still pull, and read the subscription again."""
        if time.monotonic() - self._authorized_at >= AUTHORIZE_SECONDS:
            self._authorized_at = time.monotonic()
            await self._check_rights()
            subscription = await in_thread(read_subscription, name=self._first.subscription)
            if subscription.pk != self.subscription.pk:  # a new one has its name
                raise resource_missing(subscription.subscription_id)
            self.subscription = subscription

    async def _check_rights(self) -> None:
        """Check that the caller may still pull. A caller whose token has ended must open a new stream."""
        try:
            await in_thread(self._call.authorized, self._first)
        except Unauthenticated:
            raise Unavailable("The stream's credentials have ended; open another.") from None


async def streaming_pull(requests: AsyncIterator[Any], call: Call) -> AsyncIterator[Any]:
    """Yield the responses of a stream; raise the error that ends it."""
    first = await anext(requests, None)
    if first is None:
        return
    if not first.subscription:
        raise _invalid("subscription", "must be set in the first request of a stream")
    _deadline(first.stream_ack_deadline_seconds)
    await in_thread(call.authorized, first)
    stream = Stream(call, first, await in_thread(read_subscription, name=first.subscription))
    try:
        async for answer in stream.answers(requests):
            count_request(kinds.STREAM_RESPONSES, stream.subscription.pk)
            yield answer
    except PushHubError as error:
        count_request(kinds.STREAM_RESPONSES, stream.subscription.pk, code=error.code.lower())
        raise


def _check_room(subscription: Subscription) -> None:
    """Raise ResourceExhausted if too many streams are open, with one that has been opened just now."""
    if 0 < settings.GRPC_STREAMS < openstreams.count_own():
        raise ResourceExhausted("Too many streams at once: close some, or try again later.")
    openstreams.tell()
    if settings.QUOTAS:
        counts = openstreams.open_streams(redis_client())
        own = Subscription.objects.filter(project_id=subscription.project_id, pk__in=list(counts))
        count = sum(counts[pk] for pk in own.values_list("pk", flat=True))
        check_streams(project=subscription.project.project_id, count=count)


def _deadline(seconds: int) -> int:
    if not LEAST_DEADLINE_SECONDS <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between "
            f"{LEAST_DEADLINE_SECONDS} and {MAX_ACK_DEADLINE_SECONDS} seconds.",
            field="streamAckDeadlineSeconds",
        )
    return seconds


def _changes(request: Any) -> dict[int, list[str]]:
    """Return the ack ids whose deadlines the request modifies, by seconds."""
    if len(request.modify_deadline_seconds) != len(request.modify_deadline_ack_ids):
        raise _invalid("modify_deadline_ack_ids", "must be as many as modify_deadline_seconds")
    changes: dict[int, list[str]] = defaultdict(list)
    for seconds, ack_id in zip(request.modify_deadline_seconds, request.modify_deadline_ack_ids, strict=True):
        changes[seconds].append(ack_id)
    return changes


def _invalid(field: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        f"You have passed an invalid argument to the service (argument={field}): it {why}.", field=field
    )


def _puller(client_id: str) -> str:
    """Return a new name for a stream. Those of a client begin alike, as common.lua says."""
    name = secrets.token_hex(8)
    return f"{hashlib.blake2s(client_id.encode(), digest_size=8).hexdigest()}/{name}" if client_id else name


def _given_back(subscription: Subscription, ends_ms: dict[str, int], puller: str) -> None:
    """Give back the leases of a stream that has ended, and after them its ordering keys: messages come in order."""
    try:
        give_back_leases(subscription=subscription, ends_ms=ends_ms)
        if subscription.enable_message_ordering and "/" in puller:
            hand_over_keys(subscription=subscription, puller=puller)
    except (redis.RedisError, DatabaseError) as error:
        logger.warning("%d leases and the keys of a stream that ended lapse", len(ends_ms), exc_info=error)


def _lost_by(change: Callable[..., object], **arguments: object) -> set[str]:
    """Change leases; return the ack ids whose leases had ended, which matters with exactly-once delivery."""
    try:
        change(**arguments)
    except InvalidArgument as error:
        if not error.details:
            raise
        return set(error.details[0]["metadata"])
    return set()


SUBSCRIBER: dict[str, Method] = {"StreamingPull": Bidirectional(Request, Response, streaming_pull)}
