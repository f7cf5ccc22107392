"""Pulling: leases of a subscription's messages, their acknowledgement and their deadlines.

Leases live in Redis, on the same lanes that pushing uses, so that a subscription moves between the two at any time. An
acknowledgement leaves the database first, then Redis: a crash between the two costs a duplicate, never a message.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import orjson
from django.conf import settings

from deliveries.activity import note_activity
from deliveries.backlog.backlog import Lane, Leases, by_lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure
from deliveries.backlog.paging import page_in
from deliveries.counters import kinds, recording
from deliveries.deadletters.forwarding import dead_letters_forward, is_spent
from deliveries.journal import records
from deliveries.rules.ackids import AckId, ack_id_parse, ack_id_text
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.payload import wire_size
from deliveries.rules.regions import transit_require
from deliveries.rules.taskmessage import DeliverTask, body_parse, own_parse
from deliveries.store import statements
from deliveries.store.payloads import payloads_read
from deliveries.store.writelock import write_transaction
from deliveries.transforming import Wire, wire_messages_transform
from pushhub.common import names
from pushhub.common.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, clipped
from subscriptions.models import Subscription
from subscriptions.quotas import pull_charge, pull_check
from subscriptions.selectors import PushSettings, push_settings_of, resource_missing
from subscriptions.transforms.results import FILTERED, Failed, Filtered

logger = logging.getLogger(__name__)

MAX_PULL = 1000
#: A pull returns no more bytes than this, unless its first message alone is larger.
MAX_PULL_BYTES = 10_000_000
#: Messages that one call leases: those that do not fit are given back.
LEASE_STEP = 100
MAX_ACK_DEADLINE_SECONDS = 600
#: Bytes of all ack ids of a request together (docs/spec.md#ack-ids).
MAX_ACK_REQUEST_BYTES = 524_288
#: A sleeping puller looks at least so often for leases that have lapsed.
LONGEST_SLEEP_SECONDS = 1.0
#: What the message transforms of a subscription may take in one pull.
TRANSFORM_SECONDS = 1.0
#: Bounds of the countdown of a message with which a transform has failed: the same failure is to be expected.
FAILED_COUNTDOWN_MS = (1_000, 60_000)
PERMANENT_FAILURE = "PERMANENT_FAILURE_INVALID_ACK_ID"
#: Delivery types, as metrics name them. Streams name themselves as pullers.
PULL, STREAMING_PULL = "pull", "streaming_pull"


class Received(NamedTuple):
    """A leased message; `message` is in the JSON form of PubsubMessage."""

    ack_id: str
    message: Mapping[str, Any]
    #: 0 without a dead-letter policy.
    delivery_attempt: int
    #: Bytes of its data, attributes and ordering key.
    size: int
    #: When its lease ends unless it is extended, in ms of Redis' clock.
    ends_ms: int


def messages_pull(
    *,
    subscription: Subscription,
    max_messages: int,
    wait_seconds: float = 0.0,
    lease_seconds: int = 0,
    max_bytes: int = MAX_PULL_BYTES,
    puller: str = "",
) -> list[Received]:
    """Lease up to `max_messages` and `max_bytes`, but at least one message; wait up to `wait_seconds` for the first.

    A lease lasts `lease_seconds`, or the subscription's ack deadline. While a puller holds leases of an ordering key,
    no other one gets messages of it; all calls that name no puller count as one. Raises InvalidArgument, or
    FailedPrecondition for a subscription that is pushed or detached.
    """
    if max_messages <= 0:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=max_messages).", field="maxMessages"
        )
    ends = time.monotonic() + wait_seconds
    note_activity([subscription.pk])
    project = subscription.project.project_id
    pull_check(project=project)
    while True:
        push_settings = _settings_for_pull(subscription)
        received = _lease(
            push_settings,
            min(max_messages, MAX_PULL),
            seconds=lease_seconds or push_settings.ack_deadline_seconds,
            max_bytes=min(max_bytes, MAX_PULL_BYTES),
            puller=puller,
        )
        pull_charge(project=project, size=sum(message.size for message in received))
        delivery_type = STREAMING_PULL if puller else PULL
        recording.pull_sent_count(subscription_id=push_settings.id, messages=len(received), delivery_type=delivery_type)
        left = ends - time.monotonic()
        if received or left <= 0:
            return received
        default_backlog().wait_for_pull(push_settings.id, seconds=max(min(left, LONGEST_SLEEP_SECONDS), 0.01))


def messages_acknowledge(*, subscription: Subscription, ack_ids: Sequence[str]) -> None:
    """Acknowledge messages. Late and repeated acks are ignored; with exactly-once delivery they fail, by name."""
    leases = ack_ids_read(subscription, ack_ids)
    push_settings = _settings(subscription)
    if push_settings.ordered and not push_settings.exactly_once:
        _write_down(_acknowledge_in_order(leases), push_settings, outcome="ack")
        return
    lost = _lost(leases) if push_settings.exactly_once else set()
    held = [lease for lease in leases if lease not in lost]
    _forget(held)
    _write_down(held, push_settings, outcome="ack")
    _refuse_lost(leases, lost)


def _acknowledge_in_order(leases: Sequence[AckId]) -> list[AckId]:
    """Acknowledge messages of a subscription with ordering; return the leases whose acks came in time."""
    in_time = []
    for lane, group in _by_lane(leases).items():
        owed_no_more, late = default_backlog().acknowledge(lane, [(lease.message_id, lease.times) for lease in group])
        if owed_no_more:
            _forget_ids(lane, sorted(owed_no_more))
        in_time += [lease for lease in group if lease.message_id not in late]
    return in_time


def ack_deadlines_modify(*, subscription: Subscription, ack_ids: Sequence[str], seconds: int) -> None:
    """Let leases last `seconds` from now on; 0 gives the messages back. Lapsed ones are left as they are."""
    if not 0 <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 and "
            f"{MAX_ACK_DEADLINE_SECONDS} seconds.",
            field="ackDeadlineSeconds",
        )
    leases = ack_ids_read(subscription, ack_ids)
    push_settings = _settings(subscription)
    lost = _modify(leases, push_settings, seconds=seconds, countdown_ms=_countdown_ms(push_settings))
    if push_settings.exactly_once:
        _refuse_lost(leases, lost)


def _modify(
    leases: Sequence[AckId], push_settings: PushSettings, *, seconds: int, countdown_ms: tuple[int, int]
) -> set[AckId]:
    """Let leases last `seconds` from now on, or nack them with 0; return those that had ended."""
    # With ordering, a nack brings back the later messages of the key too. The next pull forwards the spent one.
    spent = _spent(leases, push_settings) if not seconds and not push_settings.ordered else set()
    _write_down(spent, push_settings, outcome="nack")
    letters = _forward_spent(spent)
    lost: set[AckId] = set()
    for lane, group in _by_lane(lease for lease in leases if lease not in letters).items():
        gone = default_backlog().extend(
            lane,
            [(lease.message_id, lease.times) for lease in group],
            duration_ms=seconds * 1000,
            countdown_ms=countdown_ms,
        )
        lost |= {lease for lease in group if lease.message_id in gone}
    _modacks_count([lease for lease in leases if lease not in lost])
    if not seconds:
        _write_down([lease for lease in leases if lease not in lost | spent], push_settings, outcome="nack")
    return lost


def leases_give_back(*, subscription: Subscription, ends_ms: Mapping[str, int]) -> None:
    """End leases that nobody has touched: the messages are due at once, and it costs them no attempt.

    `ends_ms` has, for each ack id, when its lease was to end; a lease that was settled or extended is left alone.
    """
    ends = dict(zip(_leases_read(subscription, list(ends_ms)), ends_ms.values(), strict=True))
    for lane, group in _by_lane(ends).items():
        default_backlog().unlease(lane, [(lease.message_id, lease.times, ends[lease]) for lease in group])


def leases_lost(*, subscription: Subscription, ack_ids: Sequence[str]) -> set[str]:
    """Return the ack ids whose leases have ended, by acknowledgement, lapse or nack."""
    return {ack_id_text(lease, secret=_secret()) for lease in _lost(_leases_read(subscription, ack_ids))}


def ack_ids_read(subscription: Subscription, ack_ids: Sequence[str]) -> list[AckId]:
    """Return the leases that ack ids of this subscription stand for; InvalidArgument names the first invalid ack id."""
    if not ack_ids:
        raise InvalidArgument("You have not specified an ack ID in the request.", field="ackIds")
    if sum(map(len, ack_ids)) > MAX_ACK_REQUEST_BYTES:
        raise InvalidArgument(f"Request payload size exceeds the limit: {MAX_ACK_REQUEST_BYTES} bytes.", field="ackIds")
    return _leases_read(subscription, ack_ids)


def _leases_read(subscription: Subscription, ack_ids: Sequence[str]) -> list[AckId]:
    leases = []
    secret = _secret()
    for text in ack_ids:
        lease = ack_id_parse(text, secret=secret)
        if lease is None or lease.subscription_id != subscription.pk:
            raise InvalidArgument(
                f"You have passed an invalid ack ID to the service (ack_id={clipped(text)}).", field="ackIds"
            )
        leases.append(lease)
    return leases


def _settings(subscription: Subscription) -> PushSettings:
    push_settings = push_settings_of(subscription.pk)
    if push_settings is None:
        raise resource_missing(subscription.subscription_id)
    if push_settings.detached:
        raise FailedPrecondition(f"Subscription is detached (resource={subscription.subscription_id}).")
    return push_settings


def _settings_for_pull(subscription: Subscription) -> PushSettings:
    push_settings = _settings(subscription)
    if subscription.topic is not None:
        transit_require(subscription.topic.message_storage_policy, settings.REGION, call="Pull")
    if push_settings.endpoint:
        raise FailedPrecondition("This method is not supported for this subscription type.")
    return push_settings


def _lease(push_settings: PushSettings, count: int, *, seconds: int, max_bytes: int, puller: str) -> list[Received]:
    received: list[Received] = []
    # Where functions filter everything, the caller gets its answer all the same.
    ends = time.monotonic() + TRANSFORM_SECONDS
    for region in {settings.REGION, *statements.lanes_waiting(push_settings.id)}:
        lane = Lane(push_settings.id, region)
        room = max_bytes
        while len(received) < count and room > 0:
            step = min(count - len(received), LEASE_STEP)
            leases = _lease_lane(lane, push_settings, step, seconds, puller)
            room = max_bytes - sum(message.size for message in received)
            handle = partial(
                AckId, lane.subscription_id, region, leased_ms=leases.ends_ms - seconds * 1000, is_streamed=bool(puller)
            )
            messages, is_full = _received(
                lane, push_settings, leases, handle, max_bytes=room, at_least_one=not received
            )
            if push_settings.transforms and messages:
                messages, went_back = _transformed(push_settings, messages, max_bytes=room, at_least_one=not received)
                is_full = is_full or went_back or time.monotonic() >= ends
            received += messages
            room = 0 if is_full else room - sum(message.size for message in messages)
            if leases.page is not None:
                page_in(leases.page)
            elif len(leases.deliveries) < step:
                break
        if room <= 0:
            break
    return received


def _lease_lane(lane: Lane, push_settings: PushSettings, count: int, seconds: int, puller: str) -> Leases:
    lease = partial(
        default_backlog().lease,
        lane,
        count=count,
        duration_ms=seconds * 1000,
        countdown_ms=_countdown_ms(push_settings),
        puller=puller,
    )
    leases = lease()
    if leases is None:
        # Redis was wiped, or is new to the lane, which then reads the database.
        lane_configure(lane, push_settings, action="known")
        leases = lease()
    return leases or Leases([], None, 0)


def _received(
    lane: Lane,
    push_settings: PushSettings,
    leases: Leases,
    handle: Callable[..., AckId],
    *,
    max_bytes: int,
    at_least_one: bool,
) -> tuple[list[Received], bool]:
    """Return the first of the leased messages that fit into `max_bytes`, and whether others did not and went back.

    `handle` makes the ack id of a message, how often it was leased, and its attempt.
    """
    tasks: dict[int, DeliverTask] = {}
    times: dict[int, int] = {}
    attempts: dict[int, int] = {}
    for message_id, task_message, leased_times, leased_attempts in leases.deliveries:
        task = tasks[message_id] = _task_of(task_message)
        times[message_id] = leased_times
        attempts[message_id] = task.attempt - 1 + leased_attempts
    # A dead-letter policy allows these no further attempt.
    spent = {i: attempt - 1 for i, attempt in attempts.items() if is_spent(push_settings, attempts=attempt - 1)}
    for message_id in _forward(lane, spent) if spent else ():
        del tasks[message_id]
    owed = _still_owed(lane, push_settings, list(tasks))
    dropped = [message_id for message_id in tasks if message_id not in owed]
    if dropped:
        _forget_ids(lane, dropped)
    sizes = _sizes({message_id: task for message_id, task in tasks.items() if message_id in owed})
    fitting = _fitting(sizes, max_bytes=max_bytes, at_least_one=at_least_one)
    surplus = [message_id for message_id in sizes if message_id not in fitting]
    default_backlog().unlease(lane, [(message_id, times[message_id], leases.ends_ms) for message_id in surplus])
    payloads = payloads_read([message_id for message_id in fitting if tasks[message_id].is_reference])
    received = []
    secret = _secret()
    for message_id in fitting:
        task = tasks[message_id]
        message = payloads.get(message_id) if task.is_reference else task.message
        if message is not None:
            lease = handle(message_id, times[message_id], attempts[message_id])
            attempt = lease.attempt if push_settings.shows_attempts else 0
            ack_id = ack_id_text(lease, secret=secret)
            received.append(Received(ack_id, message, attempt, sizes[message_id], leases.ends_ms))
    return received, bool(surplus)


def _task_of(message: bytes) -> DeliverTask:
    """Return the arguments in a Celery message."""
    own = own_parse(message)
    return body_parse(own[1] if own is not None else orjson.loads(message)["body"])


def _transformed(
    push_settings: PushSettings, received: Sequence[Received], *, max_bytes: int, at_least_one: bool
) -> tuple[list[Received], bool]:
    """Return leased messages of one lane as the message transforms make them, and whether some went back.

    Those that are filtered are acknowledged, and those with which a function fails are nacked. Those for which there is
    no time, or that are too large now, go back at no cost.
    """
    leases = [lease for message in received if (lease := ack_id_parse(message.ack_id, secret=_secret())) is not None]
    kept: list[Received] = []
    filtered, failed = [], []
    reached = 0
    for message, lease, result in zip(received, leases, _results(push_settings, received), strict=False):
        if result is FILTERED:
            filtered.append(lease)
        elif isinstance(result, Failed):
            logger.debug("a message transform failed with message %d: %s", lease.message_id, result.why)
            failed.append(lease)
        else:
            size = wire_size(result)
            if size > max_bytes and (kept or not at_least_one):
                break
            max_bytes -= size
            kept.append(message._replace(message=result, size=size))
        reached += 1
    for lane, group in _by_lane(leases[reached:]).items():
        ends_ms = received[0].ends_ms
        default_backlog().unlease(lane, [(lease.message_id, lease.times, ends_ms) for lease in group])
    _modify(failed, push_settings, seconds=0, countdown_ms=_failed_countdown_ms(push_settings))
    _filter(filtered, push_settings)
    if push_settings.ordered and failed:
        # With a message, the later ones of its key have gone back.
        lost = {ack_id_text(lease, secret=_secret()) for lease in _lost(leases)}
        kept = [message for message in kept if message.ack_id not in lost]
    return kept, reached < len(received)


def _results(push_settings: PushSettings, received: Sequence[Received]) -> list[Wire | Failed | Filtered]:
    """Return the results of the first messages, as many as there is time for."""
    try:
        return wire_messages_transform(
            project=names.parse_subscription(push_settings.name)[0],
            functions=push_settings.transforms,
            messages=[message.message for message in received],
            seconds=TRANSFORM_SECONDS,
        )
    except ResourceExhausted:
        return []


def _filter(leases: Sequence[AckId], push_settings: PushSettings) -> None:
    """Acknowledge messages that a message transform has filtered."""
    if push_settings.ordered:
        leases = _acknowledge_in_order(leases)
    else:
        _forget(leases)
    for lane, group in _by_lane(leases).items():
        records.filtered(
            subscription=push_settings,
            region=lane.region,
            ids=[lease.message_id for lease in group],
            attempts=[lease.attempt for lease in group],
        )


def _sizes(tasks: Mapping[int, DeliverTask]) -> dict[int, int]:
    large = statements.payload_sizes([message_id for message_id, task in tasks.items() if task.is_reference])
    return {
        message_id: large.get(message_id, 0) if task.is_reference else wire_size(task.message)
        for message_id, task in tasks.items()
    }


def _fitting(sizes: Mapping[int, int], *, max_bytes: int, at_least_one: bool) -> dict[int, None]:
    """Return the messages, in order, up to the first that does not fit."""
    fitting: dict[int, None] = {}
    for message_id, size in sizes.items():
        if size > max_bytes and (fitting or not at_least_one):
            break
        fitting[message_id] = None
        max_bytes -= size
    return fitting


def _spent(leases: Sequence[AckId], push_settings: PushSettings) -> set[AckId]:
    """Return the leases that are held and the last that the dead-letter policy allows."""
    last = [lease for lease in leases if is_spent(push_settings, attempts=lease.attempt)]
    return set(last) - _lost(last)


def _forward_spent(leases: Iterable[AckId]) -> set[AckId]:
    """Forward nacked messages to the dead-letter topic; return the leases of the forwarded messages.

    The next pull would forward them too, but it may never come. Their leases must not have ended, so that no other
    puller can lease and forward them at the same time.
    """
    letters: set[AckId] = set()
    for lane, group in _by_lane(leases).items():
        message_ids = _forward(lane, {lease.message_id: lease.attempt for lease in group})
        letters |= {lease for lease in group if lease.message_id in message_ids}
    return letters


def _forward(lane: Lane, attempts: Mapping[int, int]) -> set[int]:
    """Forward messages to the dead-letter topic; return the ids of those that were forwarded."""
    with write_transaction():
        forwarded = dead_letters_forward(subscription_id=lane.subscription_id, region=lane.region, attempts=attempts)
    default_backlog().release(lane, sorted(forwarded.message_ids))
    forwarded.announce_all()
    return forwarded.message_ids


def _still_owed(lane: Lane, push_settings: PushSettings, message_ids: list[int]) -> set[int]:
    """Return the messages within their retention and, with exactly-once delivery, still in the database."""
    oldest_ms = time.time_ns() // 1_000_000 - push_settings.retention_seconds * 1000
    fresh = [message_id for message_id in message_ids if publish_time_ms(message_id) >= oldest_ms]
    if push_settings.exactly_once and fresh:
        fresh = statements.still_waiting(subscription_id=push_settings.id, region=lane.region, message_ids=fresh)
    return set(fresh)


def _lost(leases: Sequence[AckId]) -> set[AckId]:
    lost: set[AckId] = set()
    for lane, group in _by_lane(leases).items():
        gone = default_backlog().lost(lane, [(lease.message_id, lease.times) for lease in group])
        lost |= {lease for lease in group if lease.message_id in gone}
    return lost


def _forget(leases: Iterable[AckId]) -> None:
    for lane, group in _by_lane(leases).items():
        _forget_ids(lane, [lease.message_id for lease in group])


def _forget_ids(lane: Lane, message_ids: list[int]) -> None:
    with write_transaction():
        statements.deliveries_delete(subscription_id=lane.subscription_id, region=lane.region, message_ids=message_ids)
    default_backlog().release(lane, message_ids)


def _refuse_lost(leases: Sequence[AckId], lost: set[AckId]) -> None:
    """Fail the request as a whole, although its valid leases were settled (docs/spec.md#exactly-once-delivery)."""
    if not lost:
        return
    texts = {ack_id_text(lease, secret=_secret()): PERMANENT_FAILURE for lease in leases if lease in lost}
    raise FailedPrecondition(
        "Some acknowledgement ids in the request were invalid. This could be because the ids have expired or because "
        "they were never handed out.",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "EXACTLY_ONCE_ACKID_FAILURE",
                "domain": "pubsub.googleapis.com",
                "metadata": texts,
            }
        ],
    )


def _by_lane(leases: Iterable[AckId]) -> dict[Lane, list[AckId]]:
    return by_lane(leases, lambda lease: Lane(lease.subscription_id, lease.region))


def _write_down(leases: Iterable[AckId], push_settings: PushSettings, *, outcome: str) -> None:
    for (lane, delivery_type), group in _by_lane_and_type(leases).items():
        records.pulled(
            subscription=push_settings,
            region=lane.region,
            ids=[lease.message_id for lease in group],
            attempts=[lease.attempt for lease in group],
            outcome=outcome,
            delivery_type=delivery_type,
        )
        if outcome == "ack":
            _ages_count(kinds.ACK_LATENCY, lane, delivery_type, group)


def _modacks_count(leases: Sequence[AckId]) -> None:
    for (lane, delivery_type), group in _by_lane_and_type(leases).items():
        recording.modacks_count(subscription_id=lane.subscription_id, messages=len(group), delivery_type=delivery_type)
        _ages_count(kinds.MODACK_LATENCY, lane, delivery_type, group)


def _ages_count(kind: kinds.CounterKind, lane: Lane, delivery_type: str, leases: Sequence[AckId]) -> None:
    """Count how long ago these leases of a lane began."""
    now_ms = int(time.time() * 1000)
    ages_ms = [max(now_ms - lease.leased_ms, 0) for lease in leases if lease.leased_ms]
    recording.lease_ages_count(kind, subscription_id=lane.subscription_id, delivery_type=delivery_type, ages_ms=ages_ms)


def _by_lane_and_type(leases: Iterable[AckId]) -> dict[tuple[Lane, str], list[AckId]]:
    groups: dict[tuple[Lane, str], list[AckId]] = {}
    for lease in leases:
        delivery_type = STREAMING_PULL if lease.is_streamed else PULL
        groups.setdefault((Lane(lease.subscription_id, lease.region), delivery_type), []).append(lease)
    return groups


def _countdown_ms(push_settings: PushSettings) -> tuple[int, int]:
    """Return the bounds of the retry policy. Without one, messages are due at once (docs/spec.md#retry-policy)."""
    if push_settings.minimum_backoff_ms is None or push_settings.maximum_backoff_ms is None:
        return 0, 0
    return push_settings.minimum_backoff_ms, push_settings.maximum_backoff_ms


def _failed_countdown_ms(push_settings: PushSettings) -> tuple[int, int]:
    """Return the bounds of the countdown after a failed transform: the subscription's, but never at once."""
    least, most = FAILED_COUNTDOWN_MS
    if push_settings.minimum_backoff_ms is None or push_settings.maximum_backoff_ms is None:
        return least, most
    return max(push_settings.minimum_backoff_ms, least), max(push_settings.maximum_backoff_ms, least)


@cache
def _secret_of(key: str) -> bytes:
    return hashlib.blake2s(key.encode(), person=b"pushhub").digest()


def _secret() -> bytes:
    return _secret_of(settings.SECRET_KEY)
