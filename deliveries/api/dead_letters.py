"""Dead letters of a subscription over REST: list, redrive, discard, and make by hand. Pub/Sub has no such methods."""

from __future__ import annotations

from typing import Any, ClassVar

from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.deadletters.jobs import DEFAULT_RATE, begin_job
from deliveries.deadletters.listing import unsettled
from deliveries.deadletters.moving import BATCH, METHODS, Action, move_letters
from deliveries.deadletters.settling import METHODS as SETTLE_METHODS
from deliveries.deadletters.settling import Settlement, settle_messages
from deliveries.models import DeadLetter
from deliveries.rules.payload import publish_time_text
from deliveries.store.statements import LAST_ID
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import subscription_name
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING
from subscriptions.api.topics import listed
from subscriptions.paging import Page, paged

MOVE_BODY = {
    "application/json": {
        "type": "object",
        "properties": {
            "messageIds": {"type": "array", "items": {"type": "string"}, "maxItems": BATCH},
            "all": {"type": "boolean"},
            "messagesPerSecond": {"type": "integer"},
        },
    }
}
IDS_BODY = {
    "application/json": {
        "type": "object",
        "properties": {"messageIds": {"type": "array", "items": {"type": "string"}, "maxItems": BATCH}},
    }
}


class DeadLetterList(ApiView):
    """The dead letters of a subscription, the oldest first, without their content."""

    @serve("pushhub.v1.DeadLetters.ListDeadLetters", "subscriptions_deadletters_list", parameters=PAGING)
    def get(self, request: Request, name: str) -> Any:
        page = Page.read(request.query_params)
        source = selectors.get_subscription(name=name)
        rows, token = paged(unsettled(source), page, keys=("message_id",), scope=f"deadLetters {source.pk}")
        return listed("deadLetters", [_resource(row) for row in rows], token)


class DeadLetterMove(ApiView):
    """The base of redrive and discard."""

    action: ClassVar[Action]

    def move(self, request: Request, project: str, subscription: str) -> Response:
        """Move the named dead letters at once, or order it for them or for all at a rate; answer with their number."""
        source = selectors.get_subscription(name=subscription_name(project, subscription))
        body = request.data if isinstance(request.data, dict) else {}
        ids, is_all, rate = _ids(body), body.get("all", False), body.get("messagesPerSecond")
        if not isinstance(is_all, bool):
            raise InvalidArgument("Give true or false.", field="all")
        if "messagesPerSecond" in body and (not isinstance(rate, int) or isinstance(rate, bool)):
            raise InvalidArgument("Give a whole number.", field="messagesPerSecond")
        if is_all == bool(ids):
            raise InvalidArgument("Name the dead letters, or give all as true.", field="messageIds")
        caller = caller_of(request)
        if ids and rate is None:
            return Response({"messages": move_letters(source, ids, action=self.action, caller=caller)})
        job = begin_job(
            source,
            action=self.action,
            rate=DEFAULT_RATE if rate is None else rate,
            caller=caller,
            chosen_ids=None if is_all else ids,
        )
        return Response({"messages": job.total})


class DeadLetterRedrive(DeadLetterMove):
    """`POST ...:redriveDeadLetters`."""

    action = Action.REDRIVE

    @serve(METHODS[Action.REDRIVE], "subscriptions_deadletters_redrive", takes=MOVE_BODY)
    def post(self, request: Request, project: str, subscription: str) -> Any:
        return self.move(request, project, subscription)


class DeadLetterDiscard(DeadLetterMove):
    """`POST ...:discardDeadLetters`."""

    action = Action.DISCARD

    @serve(METHODS[Action.DISCARD], "subscriptions_deadletters_discard", takes=MOVE_BODY)
    def post(self, request: Request, project: str, subscription: str) -> Any:
        return self.move(request, project, subscription)


class MessagesSettle(ApiView):
    """The base of dead-lettering and skipping messages by hand."""

    settlement: ClassVar[Settlement]

    def settle(self, request: Request, project: str, subscription: str) -> Response:
        """End the deliveries of the named messages; answer with how many waited."""
        source = selectors.get_subscription(name=subscription_name(project, subscription))
        ids = _ids(request.data if isinstance(request.data, dict) else {})
        if not ids:
            raise InvalidArgument("Name the messages.", field="messageIds")
        return Response({"messages": settle_messages(source, ids, settlement=self.settlement)})


class MessagesDeadLetter(MessagesSettle):
    """`POST ...:deadLetterMessages`."""

    settlement = Settlement.DEAD_LETTER

    @serve(SETTLE_METHODS[Settlement.DEAD_LETTER], "subscriptions_messages_deadletter", takes=IDS_BODY)
    def post(self, request: Request, project: str, subscription: str) -> Any:
        return self.settle(request, project, subscription)


class MessagesSkip(MessagesSettle):
    """`POST ...:skipMessages`."""

    settlement = Settlement.SKIP

    @serve(SETTLE_METHODS[Settlement.SKIP], "subscriptions_messages_skip", takes=IDS_BODY)
    def post(self, request: Request, project: str, subscription: str) -> Any:
        return self.settle(request, project, subscription)


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
