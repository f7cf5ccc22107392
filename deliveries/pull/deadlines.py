"""Changes of ack deadlines: leases are extended, nacked, or given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import pull_lanes
from deliveries.deadletters.forwarding import is_spent
from deliveries.pull.leases import (
    countdown_bounds_ms,
    find_ended,
    leases_by_origin,
    leases_ended,
    parse_leases,
    read_ack_ids,
    require_settings,
)
from deliveries.pull.reporting import count_modacks, report_outcomes
from deliveries.pull.settling import dead_letter_deliveries, refuse_ended
from deliveries.rules.ackids import AckId
from pushhub.common.errors import InvalidArgument
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings

MAX_ACK_DEADLINE_SECONDS = 600


def modify_ack_deadlines(*, subscription: Subscription, ack_ids: Sequence[str], seconds: int) -> None:
    """Let leases last `seconds` from now on; 0 nacks the messages.

    Ended leases stay as they are. With exactly-once delivery they raise InvalidArgument, which names them.
    """
    if not 0 <= seconds <= MAX_ACK_DEADLINE_SECONDS:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 and "
            f"{MAX_ACK_DEADLINE_SECONDS} seconds.",
            field="ackDeadlineSeconds",
        )
    leases = read_ack_ids(subscription, ack_ids)
    push_settings = require_settings(subscription)
    bounds_ms = countdown_bounds_ms(push_settings)
    if seconds:
        ended = _extend(leases, duration_ms=seconds * 1000, countdown_ms=bounds_ms)
    else:
        ended = nack_leases(leases, push_settings, countdown_ms=bounds_ms)
    count_modacks(lease for lease in leases if lease not in ended)
    if push_settings.exactly_once:
        refuse_ended(leases, ended)


def nack_leases(leases: Sequence[AckId], push_settings: PushSettings, *, countdown_ms: tuple[int, int]) -> set[AckId]:
    """Nack messages, or forward them to the dead-letter topic. Return the leases that had ended before.

    `countdown_ms` has the bounds of the time until the next attempt.
    """
    # With ordering, a nack brings back the later messages of the key too. The next pull forwards the spent message.
    spent = set() if push_settings.ordered else _spent(leases, push_settings)
    report_outcomes(spent, push_settings, outcome="nack")
    dead_letters = _forward_spent(spent)
    ended = _extend((lease for lease in leases if lease not in dead_letters), duration_ms=0, countdown_ms=countdown_ms)
    nacked = [lease for lease in leases if lease not in ended | spent]
    report_outcomes(nacked, push_settings, outcome="nack")
    return ended


def give_back_leases(*, subscription: Subscription, ends_ms: Mapping[str, int]) -> None:
    """End leases that nobody has used: the messages are due at once, and it costs them no attempt.

    `ends_ms` has the end of the lease for each ack id. A lease that was settled or extended meanwhile stays as it is.
    """
    end_leases(dict(zip(parse_leases(subscription, list(ends_ms)), ends_ms.values(), strict=True)))


def hand_over_keys(*, subscription: Subscription, puller: str) -> None:
    """Leave the ordering keys of a stream that has closed to the other streams of its client."""
    for lane in pull_lanes(subscription.pk):
        default_backlog().hand_over(lane, puller)


def end_leases(ends_ms: Mapping[AckId, int]) -> None:
    """Do as `give_back_leases`, by lease."""
    for (lane, generation, _), group in leases_by_origin(ends_ms).items():
        unused = [(lease.message_id, lease.times, ends_ms[lease]) for lease in group]
        default_backlog().unlease(lane, unused, generation=generation)


def _extend(leases: Iterable[AckId], *, duration_ms: int, countdown_ms: tuple[int, int]) -> set[AckId]:
    """Let leases end after `duration_ms` from now. Return the leases that had ended before."""
    extend = partial(default_backlog().extend, duration_ms=duration_ms, countdown_ms=countdown_ms)
    return find_ended(leases, extend)


def _spent(leases: Sequence[AckId], push_settings: PushSettings) -> set[AckId]:
    """Return the current leases that are the last attempt which the dead-letter policy allows."""
    last_attempts = [lease for lease in leases if is_spent(push_settings, attempts=lease.attempt)]
    return set(last_attempts) - leases_ended(last_attempts)


def _forward_spent(leases: Iterable[AckId]) -> set[AckId]:
    """Forward messages to the dead-letter topic, and return the leases of the forwarded ones.

    The next pull would forward them too, but it may never come. The leases must not have ended, so that no other puller
    can lease and forward the messages at the same time.
    """
    dead_letters: set[AckId] = set()
    for origin, group in leases_by_origin(leases).items():
        forwarded_ids = dead_letter_deliveries(origin, {lease.message_id: lease.attempt for lease in group})
        dead_letters |= {lease for lease in group if lease.message_id in forwarded_ids}
    return dead_letters
