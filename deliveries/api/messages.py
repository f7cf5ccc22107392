"""Why a message is not delivered: its way to each subscription, also after the ack, and a subscription's diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils import translation

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import format_diagnosis
from deliveries.inspection.attempts import Attempt
from deliveries.inspection.contents import as_delivered, sees_originals, topic_of, wire_of
from deliveries.inspection.messages import Way, Ways, message_ways, why_missing, why_waiting
from deliveries.models import Message
from deliveries.rules.payload import publish_time_text
from deliveries.store.statements import LAST_ID
from deliveries.transforming import Wire
from pushhub.common import names
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import InvalidArgument, NotFound
from pushhub.common.principals import Principal
from pushhub.common.protojson import format_duration, format_timestamp, known_fields
from pushhub.common.rows import row_or_none
from subscriptions.api.openapi import PAGE_TOKEN
from subscriptions.api.routes import PROJECT, SUBSCRIPTION, serve
from subscriptions.iam.methods import GET_TOPIC, PULL
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic
from subscriptions.paging import Page
from subscriptions.selectors import get_project, get_subscription
from subscriptions.transforms.results import FILTERED, Failed, Filtered


@serve(
    "POST",
    SUBSCRIPTION + ":diagnose",
    "pushhub.v1.Diagnostics.DiagnoseSubscription",
    takes={"application/json": {"type": "object", "properties": {"sendProbe": {"type": "boolean"}}}},
)
def diagnose(name: str, body: object, caller: Principal) -> Any:
    """Check each step of a push. It opens connections to the endpoint, so it needs more than to view."""
    subscription_row = get_subscription(name=name)
    send_probe = known_fields(body, ["sendProbe"]).get("sendProbe", False) if isinstance(body, dict) else None
    if not isinstance(send_probe, bool):
        raise InvalidArgument("Give true or false.", field="sendProbe")
    # The texts of the API do not depend on the language that a client accepts.
    with translation.override("en"):
        return format_diagnosis(diagnose_subscription(subscription_row, caller=caller, send_probe=send_probe))


@serve("GET", PROJECT + "/messages/{message:[^/:]+}", "pushhub.v1.Diagnostics.", parameters=[PAGE_TOKEN])
def get_message(project: str, message: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Return a message's way to each subscription that the caller may pull from, as the console's message page does."""
    message_id = read_decimal(message, most=LAST_ID)
    if message_id is None:
        raise InvalidArgument("A message id is a decimal number.", field="message")
    try:
        project_id = get_project(project=project).project_id
    except NotFound:
        raise _message_not_found(message) from None
    subscriptions = Subscription.objects.filter(project__project_id=project_id)
    pullable = rows_callable(caller, PULL, subscriptions)
    found = message_ways(message_id, pullable, token=Page.read(query).token)
    row = row_or_none(Message.objects.filter(pk=message_id))
    if not found.ways and not _sees_topic(caller, row, found.events):
        raise _message_not_found(message)
    original, delivered = _contents(caller, row, found.ways) if row is not None else ({}, {})
    # The texts of the API do not depend on the language that a client accepts.
    with translation.override("en"):
        deliveries = [_delivery(way, found) | delivered.get(way.subscription_id, {}) for way in found.ways]
    answer = {
        "name": f"projects/{project_id}/messages/{message}",
        "messageId": message,
        "publishTime": publish_time_text(message_id),
        **original,
        "deliveries": deliveries,
    }
    return answer | {"nextPageToken": found.next_token} if found.next_token else answer


def _message_not_found(message: str) -> NotFound:
    """Return the answer for every message that the caller may not see. It must not tell which projects exist."""
    return NotFound(
        f"Message not found (message={message}): no subscription of the project that you may pull from has it, "
        "and neither has the journal."
    )


def _sees_topic(caller: Principal, row: Message | None, events: Sequence[Attempt]) -> bool:
    """Return whether the message was published to a topic that the caller may see."""
    ids = {row.topic_id} if row is not None else {event.topic_id for event in events}
    topics = Topic.objects.filter(pk__in=ids)
    return rows_callable(caller, GET_TOPIC, topics).exists()


def _contents(caller: Principal, row: Message, ways: Sequence[Way]) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """Return the original or, for a caller who may not see it, what each subscription gets, by primary key."""
    topic = topic_of(row)
    original: dict[str, Any] = {"topic": topic.name if topic is not None else names.DELETED_TOPIC}
    rows = Subscription.objects.select_related("project").in_bulk([way.subscription_id for way in ways])
    message = wire_of(row)
    if sees_originals(caller, topic, rows.values()):
        shown = ("data", "attributes", "orderingKey")
        return original | {name: message[name] for name in shown if name in message}, {}
    return original, {pk: _outcome(as_delivered(message, subscription)) for pk, subscription in rows.items()}


def _outcome(result: Wire | Failed | Filtered) -> dict[str, Any]:
    """Return a result of message transforms under the names of a TestMessageTransformsResponse."""
    if isinstance(result, Failed):
        return {"messageTransformFailure": {"description": result.why}}
    return {"messageFiltered": {}} if result is FILTERED else {"transformedMessage": result}


def _delivery(way: Way, page: Ways) -> dict[str, Any]:
    delivery: dict[str, Any] = {"subscription": way.subscription, "state": way.place.upper()}
    if why := why_waiting(way):
        delivery["reason"] = why
    if way.blocked_by is not None:
        delivery["blockedByMessageId"] = str(way.blocked_by.message_id)
    if way.due_ms is not None:
        delivery["nextAttemptTime"] = format_timestamp(datetime.fromtimestamp(way.due_ms / 1000, UTC))
    if way.missing:
        delivery |= {"attemptsMissing": way.missing, "attemptsMissingReason": why_missing(way, page)}
    return {**delivery, "attempts": [_attempt(attempt) for attempt in way.attempts]}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    shown: dict[str, Any] = {"time": format_timestamp(attempt.at), "event": attempt.event}
    if attempt.attempt:
        shown["deliveryAttempt"] = attempt.attempt
    if attempt.latency_ms is not None:
        shown["latency"] = format_duration(round(attempt.latency_ms))
    texts = ("outcome", "result", "worker", "answer")
    return shown | {name: value for name in texts if (value := getattr(attempt, name))}
