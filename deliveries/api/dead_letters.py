"""Dead letters of a subscription: list, redrive, discard, and make by hand. Pub/Sub has no such methods."""

from __future__ import annotations

from typing import Any

from deliveries.deadletters.jobs import DEFAULT_RATE, begin_job
from deliveries.deadletters.listing import unsettled
from deliveries.deadletters.moving import BATCH, Action, move_letters
from deliveries.deadletters.settling import Settlement, settle_messages
from deliveries.models import DeadLetter
from deliveries.rules.payload import publish_time_text
from deliveries.store.statements import LAST_ID
from pushhub.common.errors import InvalidArgument
from pushhub.common.principals import Principal
from pushhub.common.protojson import known_fields
from subscriptions import selectors
from subscriptions.api.routes import SUBSCRIPTION, listed, serve
from subscriptions.paging import Page, paged

SERVICE = "pushhub.v1.DeadLetters."
IDS = {"messageIds": {"type": "array", "items": {"type": "string"}, "maxItems": BATCH}}
RATE = {"all": {"type": "boolean"}, "messagesPerSecond": {"type": "integer"}}
MOVE_BODY = {"application/json": {"type": "object", "properties": {**IDS, **RATE}}}
IDS_BODY = {"application/json": {"type": "object", "properties": IDS}}


@serve("GET", SUBSCRIPTION + "/deadLetters", SERVICE, operation_id="subscriptions_deadletters_list")
def list_dead_letters(name: str, page: Page) -> Any:
    """Return the dead letters of a subscription, the oldest first, without their content."""
    source = selectors.get_subscription(name=name)
    rows, token = paged(unsettled(source), page, keys=("message_id",), scope=f"deadLetters {source.pk}")
    return listed("deadLetters", [_resource(row) for row in rows], token)


@serve(
    "POST",
    SUBSCRIPTION + ":redriveDeadLetters",
    SERVICE,
    operation_id="subscriptions_deadletters_redrive",
    takes=MOVE_BODY,
)
def redrive_dead_letters(name: str, body: object, caller: Principal) -> Any:
    """Redrive the named dead letters at once, or order it for them or for all at a rate. Return their number."""
    return _move(name, body, Action.REDRIVE, caller)


@serve(
    "POST",
    SUBSCRIPTION + ":discardDeadLetters",
    SERVICE,
    operation_id="subscriptions_deadletters_discard",
    takes=MOVE_BODY,
)
def discard_dead_letters(name: str, body: object, caller: Principal) -> Any:
    """Discard the named dead letters at once, or order it for them or for all at a rate. Return their number."""
    return _move(name, body, Action.DISCARD, caller)


@serve(
    "POST",
    SUBSCRIPTION + ":deadLetterMessages",
    SERVICE,
    operation_id="subscriptions_messages_deadletter",
    takes=IDS_BODY,
)
def dead_letter_messages(name: str, body: object) -> Any:
    """Make dead letters of the named messages. Return how many waited."""
    return _settle(name, body, Settlement.DEAD_LETTER)


@serve("POST", SUBSCRIPTION + ":skipMessages", SERVICE, operation_id="subscriptions_messages_skip", takes=IDS_BODY)
def skip_messages(name: str, body: object) -> Any:
    """End the deliveries of the named messages. Return how many waited."""
    return _settle(name, body, Settlement.SKIP)


def _move(name: str, body: object, action: Action, caller: Principal) -> dict[str, int]:
    source = selectors.get_subscription(name=name)
    fields = known_fields(body, IDS | RATE)
    ids, is_all, rate = _ids(fields), fields.get("all", False), fields.get("messagesPerSecond")
    if not isinstance(is_all, bool):
        raise InvalidArgument("Give true or false.", field="all")
    if "messagesPerSecond" in fields and (not isinstance(rate, int) or isinstance(rate, bool)):
        raise InvalidArgument("Give a whole number.", field="messagesPerSecond")
    if is_all == bool(ids):
        raise InvalidArgument("Name the dead letters, or give all as true.", field="messageIds")
    if ids and rate is None:
        return {"messages": move_letters(source, ids, action=action, caller=caller)}
    job = begin_job(
        source,
        action=action,
        rate=DEFAULT_RATE if rate is None else rate,
        caller=caller,
        chosen_ids=None if is_all else ids,
    )
    return {"messages": job.total}


def _settle(name: str, body: object, settlement: Settlement) -> dict[str, int]:
    source = selectors.get_subscription(name=name)
    ids = _ids(known_fields(body, IDS))
    if not ids:
        raise InvalidArgument("Name the messages.", field="messageIds")
    return {"messages": settle_messages(source, ids, settlement=settlement)}


def _ids(body: dict[str, Any]) -> list[int]:
    texts = body.get("messageIds", [])
    is_valid = isinstance(texts, list) and all(isinstance(text, str) and text.isdecimal() for text in texts)
    if not is_valid or len(texts) > BATCH or any(len(text) > len(str(LAST_ID)) for text in texts):
        raise InvalidArgument(f"Give at most {BATCH} message ids as texts of digits.", field="messageIds")
    return [number for number in map(int, texts) if number <= LAST_ID]


def _resource(row: DeadLetter) -> dict[str, Any]:
    return {
        "messageId": str(row.message_id),
        "sourceMessageId": str(row.source_id),
        "deadLetterTime": publish_time_text(row.message_id),
        "publishTime": publish_time_text(row.source_id),
        "deliveryAttempts": row.attempts,
        **({"reason": row.result} if row.result else {}),
    }
