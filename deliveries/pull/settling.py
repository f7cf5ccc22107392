"""Acknowledgement of leases, and the other ways in which their deliveries leave a subscription."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from deliveries.backlog import late
from deliveries.backlog.default import default_backlog, impatient_backlog
from deliveries.deadletters.forwarding import forward_dead_letters, usable_topic_id
from deliveries.deadletters.moving import batches
from deliveries.pull.leases import (
    Origin,
    accept_acks,
    ack_ids_of,
    leases_by_origin,
    newest_by_id,
    read_ack_ids,
    require_settings,
)
from deliveries.pull.reporting import report_outcomes
from deliveries.rules.ackids import AckId
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import InvalidArgument, error_info
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings

PERMANENT_FAILURE = "PERMANENT_FAILURE_INVALID_ACK_ID"


def acknowledge_messages(*, subscription: Subscription, ack_ids: Sequence[str]) -> None:
    """Acknowledge messages.

    A late ack counts too, except in an ordered subscription if the message or an earlier one of its key may come again.
    With exactly-once delivery, acks of ended leases raise InvalidArgument, which names them, unless they repeat an ack.
    """
    leases = read_ack_ids(subscription, ack_ids)
    push_settings = require_settings(subscription)
    ended = accept_acks(leases) if push_settings.exactly_once else set()
    ended |= settle_acks([lease for lease in leases if lease not in ended], push_settings)
    refuse_ended(leases, ended)


def settle_acks(leases: Sequence[AckId], push_settings: PushSettings, *, event: str | None = None) -> set[AckId]:
    """Take the acks of these leases. Report those that end a delivery: a repeated ack ends none, and a late one may.

    With exactly-once delivery an ack stands, so it waits for no earlier message of its key. Return the leases that have
    ended since their acks were accepted: those acks don't stand.
    """
    waits_for_earlier = push_settings.ordered and not push_settings.exactly_once
    ended = set[AckId]()
    for origin, group in leases_by_origin(leases).items():
        by_id = newest_by_id(group)
        settled_ids, waiting_ids, vain_ids = set(by_id), set[int](), set[int]()
        if waits_for_earlier:
            pairs = [(lease.message_id, lease.times) for lease in by_id.values()]
            settled_ids, vain_ids = default_backlog().acknowledge(origin.lane, pairs, generation=origin.generation)
            waiting_ids = by_id.keys() - settled_ids - vain_ids
        ended_ids = set(waiting_ids)
        if settled_ids:
            with write_transaction(durable=push_settings.exactly_once):
                if push_settings.exactly_once:
                    # The turn to write may have taken seconds, in which a lease lapses and a wiped Redis leases anew.
                    gone = accept_acks(group, impatient_backlog(asker="ack"))
                    settled_ids -= {lease.message_id for lease in gone}
                    ended |= gone
                ended_ids |= _delete(origin, settled_ids)
        acknowledged = [lease for message_id, lease in by_id.items() if message_id in ended_ids - vain_ids]
        report_outcomes(acknowledged, push_settings, outcome="ack", event=event)
        if settled_ids:
            late.remove(origin.lane, sorted(settled_ids), generation=origin.generation)
    return ended


def forget_deliveries(origin: Origin, message_ids: list[int]) -> None:
    """Delete deliveries from the database, then from Redis. A power cut may bring them back."""
    if message_ids:
        with write_transaction(durable=False):
            _delete(origin, message_ids)
    late.remove(origin.lane, message_ids, generation=origin.generation)


def _delete(origin: Origin, message_ids: Iterable[int]) -> set[int]:
    """Delete deliveries from the database; return the ids of those that there were."""
    lane, _, seek = origin
    return statements.delete_deliveries(**lane._asdict(), message_ids=sorted(message_ids), seek=seek)


def dead_letter_deliveries(origin: Origin, attempts: Mapping[int, int]) -> set[int]:
    """Forward messages, with the attempts of each, to the dead-letter topic. Return the ids of the forwarded ones."""
    lane, generation, seek = origin
    topic_id = usable_topic_id(lane.subscription_id)
    forwarded_ids: set[int] = set()
    for batch in batches(list(attempts), topic_id=topic_id):
        with write_transaction():
            forwarded = forward_dead_letters(
                **lane._asdict(),
                attempts={message_id: attempts[message_id] for message_id in batch},
                topic_id=topic_id,
                seek=seek,
            )
        # Without Redis, the publish of the dead letters is counted all the same, and the next lease finds them gone.
        forwarded.announce_all()
        late.remove(lane, sorted(forwarded.message_ids), generation=generation)
        forwarded_ids |= forwarded.message_ids
    return forwarded_ids


def refuse_ended(leases: Sequence[AckId], ended: set[AckId]) -> None:
    """Raise InvalidArgument, whose only detail names them, if some leases had ended.

    The request fails as a whole, although the others were settled (docs/spec-messages.md#exactly-once-delivery).
    """
    if not ended:
        return
    ack_ids = ack_ids_of(lease for lease in leases if lease in ended)
    raise InvalidArgument(
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have "
        "expired or the acknowledgement ids were malformed.",
        details=error_info(
            "EXACTLY_ONCE_ACKID_FAILURE",
            domain="pubsub.googleapis.com",
            metadata=dict.fromkeys(ack_ids, PERMANENT_FAILURE),
        ),
    )
