"""A pull: leases messages until there are enough, or the time to wait is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import redis
from django.conf import settings
from django.db import Error

from deliveries.activity import note_activity
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane, pull_lanes
from deliveries.backlog.paging import page_in
from deliveries.backlog.records import Lane, Leases, grouped
from deliveries.deadletters.forwarding import is_spent
from deliveries.pull.leases import Leased, Origin, ack_ids_of, countdown_bounds_ms, require_settings
from deliveries.pull.reporting import PULL, STREAMING_PULL
from deliveries.pull.settling import dead_letter_deliveries, forget_deliveries
from deliveries.pull.transforms import TRANSFORM_SECONDS, transform_leased
from deliveries.rules.ackids import AckId
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.payload import wire_size
from deliveries.rules.regions import require_transit
from deliveries.rules.taskmessage import DeliverTask, parse_any, parse_body, parse_own, seek_of
from deliveries.store import lanerows, statements
from deliveries.store.messagerows import read_payloads
from deliveries.telemetry.events import Sent, Settled, Source
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.outages import outage_or_raise
from pushhub.common.tenantpool import step_aside
from subscriptions.models import Subscription
from subscriptions.quotas import charge_pull, check_pull
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)

MAX_PULL = 1000
#: The most bytes of a pull, unless its first message alone is larger.
MAX_PULL_BYTES = 10_000_000
#: Messages per call to Redis. Those that don't fit into the pull are given back.
LEASE_STEP = 100
#: The longest time after which a waiting pull looks for leases that have lapsed.
MAX_SLEEP_SECONDS = 1.0


class Received(NamedTuple):
    """A leased message; `message` is in the JSON form of PubsubMessage."""

    ack_id: str
    message: Mapping[str, Any]
    #: 0 without a dead-letter policy.
    delivery_attempt: int
    #: Bytes of the data, attributes and ordering key.
    size: int
    #: The end of the lease unless it is extended, in ms of Redis' clock.
    ends_ms: int


class _Candidate(NamedTuple):
    """A leased delivery whose message may turn out to be spent, expired or too large."""

    task: DeliverTask
    seek: int
    #: The number of leases of the delivery so far.
    times: int
    attempt: int


def pull_messages(
    *,
    subscription: Subscription,
    max_messages: int,
    wait_seconds: float = 0.0,
    lease_seconds: int = 0,
    max_bytes: int = MAX_PULL_BYTES,
    puller: str = "",
    has_left: Callable[[], bool] | None = None,
    check_rights: Callable[[], None] | None = None,
) -> list[Received]:
    """Lease up to `max_messages` and `max_bytes`, but at least one message. Wait up to `wait_seconds` for the first.

    One who `has_left` is not waited for: the next messages would be leased to nobody. `check_rights` is called after
    each wait, and raises an error once the caller may no longer pull.

    A lease lasts `lease_seconds`, or the subscription's ack deadline. While a puller holds leases of an ordering key,
    no other puller gets messages of it. All calls without a `puller` count as the same one. Raises InvalidArgument, or
    FailedPrecondition for a subscription that is pushed or detached.
    """
    if max_messages <= 0:
        raise InvalidArgument(
            "You have passed an invalid argument to the service (argument=max_messages).", field="maxMessages"
        )
    ends = time.monotonic() + wait_seconds
    note_activity([subscription.pk])
    project = subscription.project.project_id
    check_pull(project=project)
    while True:
        push_settings = _settings_for_pull(subscription)
        received = _lease(
            push_settings,
            min(max_messages, MAX_PULL),
            seconds=lease_seconds or push_settings.ack_deadline_seconds,
            max_bytes=min(max_bytes, MAX_PULL_BYTES),
            puller=puller,
        )
        charge_pull(project=project, size=sum(message.size for message in received))
        delivery_type = STREAMING_PULL if puller else PULL
        observe([Sent(push_settings.id, delivery_type, len(received))] if received else [])
        remaining = ends - time.monotonic()
        # One of the tenant's turns is left for requests that don't wait.
        if received or remaining <= 0 or not step_aside(spare=1):
            return received
        default_backlog().wait_for_pull(push_settings.id, seconds=max(min(remaining, MAX_SLEEP_SECONDS), 0.01))
        if has_left is not None and has_left():
            return []
        if check_rights is not None:
            check_rights()


def _settings_for_pull(subscription: Subscription) -> PushSettings:
    push_settings = require_settings(subscription)
    if subscription.topic is not None:
        require_transit(subscription.topic.message_storage_policy, settings.REGION, call="Pull")
    if push_settings.endpoint:
        raise FailedPrecondition("This method is not supported for this subscription type.")
    return push_settings


def _lease(push_settings: PushSettings, count: int, *, seconds: int, max_bytes: int, puller: str) -> list[Received]:
    """Lease messages of all regions, as many as there are, up to the two limits.

    If an outage ends the pull, the puller gets what was leased before. A Redis without memory, for instance, takes no
    page, and has memory again when messages are acknowledged.
    """
    received: list[Received] = []
    # A pull also ends after this time if functions filter all messages.
    ends = time.monotonic() + TRANSFORM_SECONDS
    for lane in pull_lanes(push_settings.id):
        room = max_bytes
        while len(received) < count and room > 0:
            step = min(count - len(received), LEASE_STEP)
            try:
                leases = _lease_lane(lane, push_settings, step, seconds, puller)
                room = max_bytes - sum(message.size for message in received)
                ack_id = partial(
                    AckId,
                    *lane,
                    leased_ms=leases.ends_ms - seconds * 1000,
                    is_streamed=bool(puller),
                    generation=leases.generation,
                )
                with _giving_back_on_error(lane, leases):
                    leased, is_full = _read(
                        lane, push_settings, leases, ack_id, max_bytes=room, at_least_one=not received
                    )
                is_full = is_full or (bool(push_settings.transforms) and time.monotonic() >= ends)
                received += _received(leased, push_settings, ends_ms=leases.ends_ms)
                room = 0 if is_full else room - sum(message.size for message in leased)
                if leases.page is not None:
                    page_in([leases.page])
            except (redis.RedisError, Error) as error:
                if not received:
                    raise
                logger.warning("a pull ends early: %s", outage_or_raise(error))
                return received
            if leases.page is None and len(leases.deliveries) < step:
                break
        if room <= 0:
            break
    return received


@contextmanager
def _giving_back_on_error(lane: Lane, leases: Leases) -> Iterator[None]:
    """Give leases back if the block fails: nobody gets their messages, and a lapse would cost them an attempt."""
    try:
        yield
    except Exception:
        with suppress(redis.RedisError):
            _give_back(lane, leases, [(delivery.message_id, delivery.times) for delivery in leases.deliveries])
        raise


def _give_back(lane: Lane, leases: Leases, deliveries: Iterable[tuple[int, int]]) -> None:
    """Give back those of the leases that still hold; a delivery is its id and the number of its leases."""
    given_back = [(message_id, times, leases.ends_ms) for message_id, times in deliveries]
    default_backlog().unlease(lane, given_back, generation=leases.generation)


def _received(leased: Sequence[Leased], push_settings: PushSettings, *, ends_ms: int) -> list[Received]:
    ack_ids = ack_ids_of(lease for lease, _, _ in leased)
    shows_attempts = push_settings.shows_attempts
    return [
        Received(ack_id, message, lease.attempt if shows_attempts else 0, size, ends_ms)
        for ack_id, (lease, message, size) in zip(ack_ids, leased, strict=True)
    ]


def _lease_lane(lane: Lane, push_settings: PushSettings, count: int, seconds: int, puller: str) -> Leases:
    lease = partial(
        default_backlog().lease,
        lane,
        count=count,
        duration_ms=seconds * 1000,
        countdown_ms=countdown_bounds_ms(push_settings),
        puller=puller,
    )
    leases = lease()
    if leases is None:
        # Redis was wiped or never had the lane. Configuring it makes the lane read the database.
        configure_lane(lane, push_settings, action="known")
        leases = lease()
    return leases or Leases([], None, 0, "")


def _read(
    lane: Lane,
    push_settings: PushSettings,
    leases: Leases,
    ack_id: Callable[..., AckId],
    *,
    max_bytes: int,
    at_least_one: bool,
) -> tuple[list[Leased], bool]:
    """Return the first messages that fit into `max_bytes`, transformed, and whether others were given back.

    Spent messages are forwarded to the dead-letter topic; expired ones, and those whose payload has left the database,
    are forgotten. `ack_id` takes a message id, the number of leases and the attempt.
    """
    candidates = {
        message_id: _candidate(task_message, times, attempts)
        for message_id, task_message, times, attempts in leases.deliveries
    }
    for message_id in _unpullable(lane, push_settings, candidates, generation=leases.generation):
        del candidates[message_id]
    sizes = _sizes(candidates)
    fitting = _fitting(sizes, max_bytes=max_bytes, at_least_one=at_least_one)
    surplus = [message_id for message_id in sizes if message_id not in fitting]
    _give_back(lane, leases, [(message_id, candidates[message_id].times) for message_id in surplus])
    payloads = read_payloads([message_id for message_id in fitting if candidates[message_id].task.is_reference])
    leased = []
    gone: list[int] = []
    for message_id in fitting:
        task, seek, times, attempt = candidates[message_id]
        message = payloads.get(message_id) if task.is_reference else task.message
        if message is None:
            gone.append(message_id)
        else:
            leased.append(Leased(ack_id(message_id, times, attempt, seek=seek), message, sizes[message_id]))
    _forget(lane, candidates, gone, generation=leases.generation)
    has_more = False
    if push_settings.transforms and leased:
        leased, has_more = transform_leased(
            push_settings, leased, ends_ms=leases.ends_ms, max_bytes=max_bytes, at_least_one=at_least_one
        )
    return leased, bool(surplus) or has_more


def _candidate(task_message: bytes, times: int, leased_attempts: int) -> _Candidate:
    task_id, body = parse_own(task_message) or parse_any(task_message)
    task = parse_body(body)
    return _Candidate(task, seek_of(task_id), times, task.attempt - 1 + leased_attempts)


def _unpullable(
    lane: Lane, push_settings: PushSettings, candidates: Mapping[int, _Candidate], *, generation: str
) -> set[int]:
    """Forward spent messages to the dead-letter topic and forget what is no longer owed. Return the ids of both."""
    # The attempt of a lease counts from 1, so the attempt before it was the last that the policy allowed.
    spent = [i for i, candidate in candidates.items() if is_spent(push_settings, attempts=candidate.attempt - 1)]
    forwarded: set[int] = set()
    for seek, message_ids in grouped(spent, lambda message_id: candidates[message_id].seek).items():
        attempts = {message_id: candidates[message_id].attempt - 1 for message_id in message_ids}
        forwarded |= dead_letter_deliveries(Origin(lane, generation, seek), attempts)
    others = {message_id: candidates[message_id] for message_id in candidates if message_id not in forwarded}
    owed = _still_owed(lane, push_settings, others)
    gone = [message_id for message_id in others if message_id not in owed]
    _report_expired(lane, push_settings, candidates, gone)
    _forget(lane, candidates, gone, generation=generation)
    return forwarded.union(gone)


def _report_expired(
    lane: Lane, push_settings: PushSettings, candidates: Mapping[int, _Candidate], gone: Sequence[int]
) -> None:
    """Report those that this pull takes out of the database, which has only what is past its retention."""
    expired = lanerows.still_waiting(**lane._asdict(), message_ids=gone)
    if expired:
        attempts = [candidates[message_id].attempt - 1 for message_id in expired]
        observe([Settled.as_expired(Source.of(push_settings, lane.region), expired, attempts)])


def _forget(lane: Lane, candidates: Mapping[int, _Candidate], message_ids: Sequence[int], *, generation: str) -> None:
    """Delete leased deliveries that are no longer owed."""
    for seek, ids in grouped(message_ids, lambda message_id: candidates[message_id].seek).items():
        forget_deliveries(Origin(lane, generation, seek), ids)


def _still_owed(lane: Lane, push_settings: PushSettings, candidates: Mapping[int, _Candidate]) -> set[int]:
    """Return the messages within their retention that are still in the database.

    The database is asked about all with exactly-once delivery, and otherwise about those that were leased before: Redis
    may have missed that one was dead-lettered or skipped, and a subscriber that nacks it would get it for ever.
    """
    oldest_ms = time.time_ns() // 1_000_000 - push_settings.retention_seconds * 1000
    owed = {message_id for message_id in candidates if publish_time_ms(message_id) >= oldest_ms}
    asked = [message_id for message_id in owed if push_settings.exactly_once or candidates[message_id].times > 1]
    if asked:
        waiting = lanerows.still_waiting(subscription_id=push_settings.id, region=lane.region, message_ids=asked)
        owed.difference_update(set(asked).difference(waiting))
    return owed


def _sizes(candidates: Mapping[int, _Candidate]) -> dict[int, int]:
    references = [message_id for message_id, candidate in candidates.items() if candidate.task.is_reference]
    stored_sizes = statements.payload_sizes(references)
    return {
        message_id: stored_sizes.get(message_id, 0) if task.is_reference else wire_size(task.message)
        for message_id, (task, *_) in candidates.items()
    }


def _fitting(sizes: Mapping[int, int], *, max_bytes: int, at_least_one: bool) -> dict[int, None]:
    """Return the messages, in order, before the first that doesn't fit."""
    fitting: dict[int, None] = {}
    for message_id, size in sizes.items():
        if size > max_bytes and (fitting or not at_least_one):
            break
        fitting[message_id] = None
        max_bytes -= size
    return fitting
