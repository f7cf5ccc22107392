"""A message's page: its way through each subscription, while it waits and after the ack."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from deliveries.admin.readonly import ReadOnlyAdmin, publish_time_shown
from deliveries.deadletters.forwarding import dead_letter_topic_usable
from deliveries.deadletters.settling import METHODS as SETTLE_METHODS
from deliveries.deadletters.settling import Settlement, settle_messages
from deliveries.inspection import texts
from deliveries.inspection.attempts import Attempt
from deliveries.inspection.contents import as_delivered, sees_originals, topic_of, wire_of
from deliveries.inspection.messages import Place, Way, Ways, message_ways, why_missing, why_waiting
from deliveries.models import Message
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage, parse_attributes
from deliveries.store.statements import LAST_ID
from deliveries.transforming import Wire
from pushhub.common import names
from pushhub.common.clock import duration_text, time_text
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import InvalidArgument, PushHubError, ResourceExhausted
from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.console.base import caller_of, check_row
from subscriptions.console.texts import error_text
from subscriptions.iam.methods import GET_SUBSCRIPTION, PUBLISH, PULL, may_call
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic
from subscriptions.transforms.results import FILTERED, Failed

SHOWN_BYTES = 2000

WAITING = frozenset({Place.WAITING, Place.RETRYING, Place.OUTSTANDING})
PLACES = {
    Place.WAITING: ("warn", gettext_lazy("waiting")),
    Place.RETRYING: ("warn", gettext_lazy("waiting for a retry")),
    Place.OUTSTANDING: ("good", gettext_lazy("outstanding")),
    Place.ACKED: ("good", gettext_lazy("acknowledged")),
    Place.DEAD_LETTERED: ("bad", gettext_lazy("dead-lettered")),
    Place.EXPIRED: ("bad", gettext_lazy("expired")),
    Place.DROPPED: ("bad", gettext_lazy("dropped")),
    Place.GONE: ("", gettext_lazy("not waiting any more")),
}


class MessagePages(ReadOnlyAdmin):
    """The views, below the addresses of the model."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("way/<int:message_id>/", view(self.way_page), name="deliveries_message_way"),
            path("settle/<int:message_id>/", view(self.settle), name="deliveries_message_settle"),
            path("replay/<int:message_id>/", view(self.publish_again), name="deliveries_message_replay"),
            *super().get_urls(),
        ]

    def way_page(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """Where a message is on its way to each subscription that the reader may pull from."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if message_id > LAST_ID:
            raise Http404
        caller = caller_of(request)
        try:
            pullable = rows_callable(caller, PULL, Subscription.objects.all())
            page = message_ways(message_id, pullable, token=request.GET.get("page", ""))
        except InvalidArgument:
            raise Http404 from None
        listed = row_or_none(self.get_queryset(request).filter(pk=message_id))
        if listed is None and not page.ways:
            raise Http404
        # It may be kept for others alone; whoever got it may go on seeing it, as over REST.
        row = row_or_none(Message.objects.filter(pk=message_id))
        topic = topic_of(row) if row is not None else None
        ids = [way.subscription_id for way in page.ways]
        rows = Subscription.objects.filter(pk__in=ids).select_related("project", "dead_letter_topic__project")
        visible = set(rows_callable(caller, GET_SUBSCRIPTION, rows).values_list("pk", flat=True))
        contents = _contents(caller, row, topic, rows) if row is not None else {}
        by_pk = {subscription.pk: subscription for subscription in rows}
        context = {
            "title": str(message_id),
            "published": publish_time_shown(message_id),
            "row": row,
            "topic": topic or names.DELETED_TOPIC,
            "original": contents.get(None),
            "ways": [
                _shown(way, visible, page)
                | {"content": contents.get(way.subscription_id)}
                | {"settle": _settle_offered(way, by_pk.get(way.subscription_id), caller)}
                for way in page.ways
            ],
            "next_page": page.next_token,
            "may_publish": listed is not None and topic is not None and may_call(caller, PUBLISH, topic),
        }
        return self.render(request, "admin/deliveries/message_way.html", **context)

    @method_decorator(require_POST)
    def settle(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """Dead-letter or skip a message of one subscription, after a confirmation where it is lost."""
        subscriptions = Subscription.objects.select_related("project", "dead_letter_topic__project")
        chosen = request.POST.get("subscription", "")
        row = get_object_or_404(subscriptions, pk=read_decimal(chosen, most=LAST_ID))
        settlement = Settlement.DEAD_LETTER if request.POST.get("do") == "dead_letter" else Settlement.SKIP
        if not self.has_view_permission(request) or message_id > LAST_ID:
            raise PermissionDenied
        check_row(request, row, SETTLE_METHODS[settlement], {"subscription": row.name})
        back = reverse("admin:deliveries_message_way", args=[message_id])
        if settlement is Settlement.SKIP and "confirmed" not in request.POST:
            question = _("Skipping a message loses it for %(name)s. Nobody delivers it again.") % {"name": row.name}
            return self.confirmation(request, question, title=str(message_id), label=_("Skip"), back=back)
        try:
            count = settle_messages(row, [message_id], settlement=settlement)
        except PushHubError as error:
            messages.error(request, error_text(error))
            return HttpResponseRedirect(back)
        if not count:
            messages.error(request, _("The message no longer waits, or its dead letter topic may not have it."))
        elif settlement is Settlement.SKIP:
            messages.success(request, _("Skipped: nobody delivers it any more."))
        else:
            messages.success(request, _("Dead-lettered: it no longer waits in this subscription."))
        return HttpResponseRedirect(back)

    @method_decorator(require_POST)
    def publish_again(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """Publish a message that is still kept once more, under a new id."""
        if message_id > LAST_ID or not self.has_view_permission(request):
            raise PermissionDenied
        row = row_or_none(self.get_queryset(request).filter(pk=message_id))
        topic = topic_of(row) if row is not None else None
        if row is None or topic is None or not may_call(caller_of(request), PUBLISH, topic):
            raise PermissionDenied
        copy = NewMessage(bytes(row.data), parse_attributes(row.attributes), row.ordering_key)
        try:
            [new_id] = publish_message(topic=topic, messages=[copy])
        except PushHubError as error:
            messages.error(request, error_text(error))
            return HttpResponseRedirect(reverse("admin:deliveries_message_way", args=[message_id]))
        messages.success(request, _("Published again as message %(id)s.") % {"id": new_id})
        return HttpResponseRedirect(reverse("admin:deliveries_message_way", args=[new_id]))


def _contents(
    caller: Principal, row: Message, topic: Topic | None, subscriptions: Iterable[Subscription]
) -> dict[int | None, dict[str, Any]]:
    """Return the original under None, or for readers who may not see it, what each subscription gets."""
    if sees_originals(caller, topic, list(subscriptions)):
        return {None: content_shown(wire_of(row))}
    return {subscription.pk: delivered_shown(wire_of(row), subscription) for subscription in subscriptions}


def delivered_shown(message: Wire, subscription: Subscription) -> dict[str, Any]:
    """Return what a template shows of what the subscription gets of a message."""
    try:
        result = as_delivered(message, subscription)
    except ResourceExhausted:
        return {"sentence": _("The message transforms of the project are busy, so its content cannot be shown now.")}
    if isinstance(result, Failed):
        return {"sentence": _("The message transforms of the subscription fail with it.")}
    if result is FILTERED:
        return {"sentence": _("The message transforms of the subscription filter it.")}
    return content_shown(result)


def content_shown(message: Wire) -> dict[str, Any]:
    data = base64.b64decode(message.get("data", ""))
    return {"attributes": message.get("attributes", {}), "text": data[:SHOWN_BYTES].decode(errors="replace")}


def _shown(way: Way, visible: Collection[int], page: Ways) -> dict[str, Any]:
    """Return what the template shows of a way. `visible` has the subscriptions whose pages the caller may open."""
    level, state = PLACES[way.place]
    return {
        "subscription": way.subscription,
        "url": reverse("admin:deliveries_state", args=[way.subscription_id]) if way.subscription_id in visible else "",
        "level": level,
        "state": state,
        "why": why_waiting(way),
        "why_missing": why_missing(way, page),
        "is_searched_on": way.is_searched_on,
        "blocked_by": way.blocked_by.message_id if way.blocked_by is not None else None,
        "attempts": [_attempt_shown(attempt) for attempt in way.attempts],
    }


def _settle_offered(way: Way, row: Subscription | None, caller: Principal) -> dict[str, Any] | None:
    """Return the ways out that the caller may choose for a message that waits in the subscription."""
    if way.place not in WAITING or row is None or not may_call(caller, SETTLE_METHODS[Settlement.SKIP], row):
        return None
    return {"subscription_id": row.pk, "can_dead_letter": dead_letter_topic_usable(row) is not None}


def _attempt_shown(attempt: Attempt) -> dict[str, Any]:
    return {
        "at": time_text(attempt.at, milliseconds=True),
        "event": attempt.event,
        "number": attempt.attempt or "",
        "outcome": attempt.outcome,
        "result": texts.result_text(attempt.result),
        "latency": "" if attempt.latency_ms is None else duration_text(attempt.latency_ms),
        "worker": attempt.worker.partition(":")[0],
        "answer": attempt.answer,
    }
