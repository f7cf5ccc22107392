"""Redrive and discard dead letters, a few at a time.

Either takes a dead letter off the list and acknowledges it for those subscriptions of the dead-letter topic that the
caller may pull from; the others keep their copy. A redrive also publishes the message again, under a new id, to the
subscription that it came from and to no other. All of that happens in one transaction, so a crash neither loses a
message nor redrives it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from deliveries.backlog.elsewhere import forget_ended
from deliveries.backlog.records import Lane, grouped
from deliveries.deadletters.forwarding import ATTRIBUTES, CONSUME, Moved
from deliveries.models import DeadLetter, DeadLetterJob, Delivery, Message
from deliveries.publish.offering import offer_all
from deliveries.publish.storing import store_messages
from deliveries.rules.payload import NewMessage, parse_attributes
from deliveries.store import statements
from deliveries.store.fanout import SLICE_ROWS
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import FailedPrecondition
from pushhub.common.principals import Principal
from subscriptions import audit
from subscriptions.iam.visible import rows_held
from subscriptions.models import Subscription
from subscriptions.selectors import subscriptions_of_topic

#: Dead letters of one transaction, and the bytes of payload after which it takes no more.
BATCH = 100
BATCH_BYTES = 10_000_000

Action = DeadLetterJob.Action
#: What each action is called in the table of permissions and in the audit log.
METHODS = {
    Action.REDRIVE: "pushhub.v1.DeadLetters.RedriveDeadLetters",
    Action.DISCARD: "pushhub.v1.DeadLetters.DiscardDeadLetters",
}


def move_letters(source: Subscription, ids: Sequence[int], *, action: str, caller: Principal) -> int:
    """Redrive or discard those of the dead letters of a subscription that are still on its list; return their number.

    Raises FailedPrecondition if the subscription cannot take messages back.
    """
    count = 0
    for batch in batches(ids):
        with write_transaction():
            moved = move_batch(source, batch, action=action, caller=caller)
            if moved.message_ids:
                after = {"messages": len(moved.message_ids)}
                audit.carried_out(method=METHODS[Action(action)], row=source, after=after)
        moved.announce_all()
        count += len(moved.message_ids)
    return count


def batches(ids: Sequence[int], *, topic_id: int | None = None) -> list[Sequence[int]]:
    """Divide dead letters so that no batch has more of them, or more bytes, than one transaction should.

    `topic_id` is the topic to whose subscriptions they are published, which bounds their number, too.
    """
    most = BATCH
    if topic_id is not None:
        most = max(min(BATCH, SLICE_ROWS // max(len(subscriptions_of_topic(topic_id)), 1)), 1)
    sizes = statements.payload_sizes(ids)
    divided: list[list[int]] = []
    room = 0
    for message_id in ids:
        size = sizes.get(message_id, 0)
        if not divided or len(divided[-1]) == most or size > room:
            divided.append([])
            room = BATCH_BYTES
        divided[-1].append(message_id)
        room -= size
    return list(divided)


def move_batch(source: Subscription, ids: Sequence[int], *, action: str, caller: Principal) -> Moved:
    """Redrive or discard a few dead letters in the caller's transaction.

    A dead letter that somebody else moved or acknowledged meanwhile is left out.
    """
    rows = DeadLetter.objects.select_for_update().filter(subscription=source, message_id__in=ids)
    letters = {letter.message_id: letter for letter in rows.order_by("message_id")}
    waiting = list(Delivery.objects.filter(message_id__in=list(letters)).select_related(None))
    owed_ids = {delivery.message_id for delivery in waiting}
    unsettled = [letter for letter in letters.values() if letter.is_kept or letter.message_id in owed_ids]
    payloads = Message.objects.in_bulk([letter.message_id for letter in unsettled])
    unsettled = [letter for letter in unsettled if letter.message_id in payloads]
    moved = Moved({letter.message_id for letter in unsettled})
    if action == Action.REDRIVE and unsettled:
        moved.announce += _publish_back(source, unsettled, payloads)
    moved.announce += _acknowledge(waiting, caller=caller)
    DeadLetter.objects.filter(message_id__in=list(letters)).delete()
    return moved


def check_redrivable(source: Subscription) -> None:
    """Raise FailedPrecondition if a subscription gets no messages any more."""
    if source.detached or source.topic is None:
        raise FailedPrecondition(
            f"The subscription is detached or its topic is deleted, so it cannot take dead letters back "
            f"(resource={source.subscription_id})."
        )


def _publish_back(
    source: Subscription, letters: Sequence[DeadLetter], payloads: Mapping[int, Message]
) -> list[Callable[[], object]]:
    check_redrivable(source)
    assert source.topic is not None
    announce: list[Callable[[], object]] = []
    for region in sorted({payload.region for payload in payloads.values()}):
        of_region = [letter for letter in letters if payloads[letter.message_id].region == region]
        messages = [letter_original(letter, payloads[letter.message_id]) for letter in of_region]
        published = store_messages(topic=source.topic, messages=messages, region=region, only=source.pk)
        if [len(owed.indices) for owed in published.owed] != [len(messages)]:
            raise FailedPrecondition(
                f"The filter of the subscription does not let all of these dead letters through "
                f"(resource={source.subscription_id})."
            )
        announce.append(partial(offer_all, [published]))
    return announce


def letter_original(letter: DeadLetter, payload: Message) -> NewMessage:
    """Return the message as it was before it became a dead letter."""
    attributes = {name: value for name, value in parse_attributes(payload.attributes).items() if name not in ATTRIBUTES}
    return NewMessage(bytes(payload.data), attributes | parse_attributes(letter.replaced), payload.ordering_key)


def _acknowledge(waiting: Sequence[Delivery], *, caller: Principal) -> list[Callable[[], object]]:
    """Delete deliveries of dead letters to the subscriptions that the caller may pull from."""
    subscriptions = Subscription.objects.filter(pk__in={delivery.subscription_id for delivery in waiting})
    consumable = set(rows_held(caller, CONSUME, subscriptions).values_list("pk", flat=True))
    acknowledged = (delivery for delivery in waiting if delivery.subscription_id in consumable)
    announce: list[Callable[[], object]] = []
    for place, group in grouped(acknowledged, attrgetter("subscription_id", "region")).items():
        lane, message_ids = Lane(*place), [delivery.message_id for delivery in group]
        statements.delete_deliveries(**lane._asdict(), message_ids=message_ids)
        announce.append(partial(forget_ended, lane, message_ids))
    return announce
