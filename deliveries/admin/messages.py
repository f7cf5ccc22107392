"""The console's side of the data plane: what waits, how each subscription stands, and publishing by hand."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

import redis
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.backlog.backlog import Lane
from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneState
from deliveries.models import ArchiveFile, Delivery, Message
from deliveries.publish.request import publish_request_parse
from deliveries.publish.service import message_publish
from deliveries.push.rejected import rejected
from deliveries.rules.flow import Flow, pause_ms
from deliveries.rules.payload import publish_time_text
from deliveries.store import statements
from pushhub.common.errors import PushHubError
from pushhub.common.principals import Principal
from subscriptions.console.base import caller_of, check_row
from subscriptions.iam import access
from subscriptions.iam.methods import METHODS
from subscriptions.iam.visible import rows_held
from subscriptions.models import Project, Subscription, Topic

PUBLISH = "google.pubsub.v1.Publisher.Publish"
PULL = "google.pubsub.v1.Subscriber.Pull"
SHOWN_BYTES = 2000


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    """Messages that are kept, with what is in them: for those who may pull them."""

    methods = {"view": PULL}
    list_display = ("id", "topic", "region", "size", "publish_time", "ordering_key")
    list_select_related = ("topic__project",)
    search_fields = ("=id",)
    ordering = ("-id",)
    fields = ("id", "topic", "region", "publish_time", "attributes", "ordering_key", "size", "text")
    readonly_fields = fields

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Message]) -> QuerySet[Message]:
        """What waits for a subscription that the caller may pull from, and all of the projects where it may pull."""
        [needed] = METHODS[self.methods[verb]]
        topics = Topic.objects.order_by().filter(
            project__in=rows_held(caller, needed.permission, Project.objects.order_by())
        )
        subscriptions = rows_held(caller, needed.permission, Subscription.objects.order_by())
        waiting = Delivery.objects.filter(message=OuterRef("pk"), subscription__in=subscriptions)
        return rows.filter(Q(topic__in=topics) | Exists(waiting))

    @admin.display(description=gettext_lazy("Size"))
    def size(self, row: Message) -> int:
        return len(row.data)

    @admin.display(description=gettext_lazy("Publish time"), ordering="id")
    def publish_time(self, row: Message) -> str:
        return publish_time_text(row.pk)

    @admin.display(description=gettext_lazy("Data"))
    def text(self, row: Message) -> str:
        return bytes(row.data[:SHOWN_BYTES]).decode(errors="replace")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """Deliveries that wait, and the pages that are no model's."""

    methods = {"view": "google.pubsub.v1.Subscriber.GetSubscription"}
    held_on = "subscription"
    list_display = ("number", "subscription", "region", "attempts", "last_result", "last_attempt_at", "published")
    list_select_related = ("subscription__project",)
    list_filter = ("last_result",)
    search_fields = ("=message__id",)
    ordering = ("id",)
    fields = ("number", "subscription", "region", "attempts", "last_result", "last_attempt_at")
    readonly_fields = fields

    @admin.display(description=gettext_lazy("message"), ordering="message_id")
    def number(self, row: Delivery) -> int:
        return row.message_id

    @admin.display(description=gettext_lazy("Publish time"), ordering="message_id")
    def published(self, row: Delivery) -> str:
        return publish_time_text(row.message_id)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("state/<int:subscription_id>/", view(self.state), name="deliveries_state"),
            path("publish/<int:topic_id>/", view(self.publish), name="deliveries_publish"),
            path("rejected/", view(self.rejected), name="deliveries_rejected"),
            *super().get_urls(),
        ]

    def state(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """How a subscription's lanes stand in Redis, and its oldest deliveries."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = Subscription.objects.select_related("project")
        subscription = get_object_or_404(rows, pk=subscription_id)
        check_row(request, subscription, self.methods["view"], {"subscription": subscription.name})
        waiting = Delivery.objects.filter(subscription=subscription).order_by("message_id")
        return self._page(
            request,
            "admin/deliveries/state.html",
            title=subscription.name,
            lanes=_lanes(subscription_id),
            charts=reverse("admin:deliveries_charts", args=[subscription_id]),
            oldest=[(row, publish_time_text(row.message_id)) for row in waiting[:20]],
        )

    def publish(self, request: HttpRequest, topic_id: int) -> HttpResponse:
        """A form that publishes one message."""
        if not request.user.has_perm("subscriptions.change_topic"):
            raise PermissionDenied
        topic = get_object_or_404(Topic.objects.select_related("project"), pk=topic_id)
        check_row(request, topic, PUBLISH, {"topic": topic.name})
        form = PublishForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                [message_id] = message_publish(topic=topic, messages=form.messages())
            except PushHubError as error:
                form.add_error(None, error.message)
            else:
                messages.success(request, _("Published message %(id)s.") % {"id": message_id})
                return HttpResponseRedirect(reverse("admin:deliveries_publish", args=[topic_id]))
        return self._page(request, "admin/deliveries/publish.html", title=topic.name, form=form)

    def rejected(self, request: HttpRequest) -> HttpResponse:
        """Task messages that could not be decoded: of any project, so for superusers."""
        if not access.is_root(caller_of(request)):
            raise PermissionDenied
        try:
            rows = rejected()
        except redis.RedisError:
            rows = []
            messages.warning(request, _("Redis does not answer."))
        for row in rows:
            row["at"] = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(float(str(row["at"]))))
        return self._page(request, "admin/deliveries/rejected.html", title=_("Rejected task messages"), rows=rows)

    def _page(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        shared = {**self.admin_site.each_context(request), "opts": self.opts}
        return TemplateResponse(request, template, {**shared, **context})


class PublishForm(forms.Form):
    """One message, as text. Its rules are those of the API."""

    text = forms.CharField(label=gettext_lazy("Data"), required=False, widget=forms.Textarea(attrs={"rows": 6}))
    attributes = forms.JSONField(label=gettext_lazy("Attributes"), required=False, initial=dict)
    ordering_key = forms.CharField(label=gettext_lazy("Ordering key"), required=False)

    def messages(self) -> Any:
        given = self.cleaned_data
        message = {
            "data": base64.b64encode(given["text"].encode()).decode(),
            "attributes": given["attributes"] or {},
            "orderingKey": given["ordering_key"],
        }
        return publish_request_parse({"messages": [message]})


def _lanes(subscription_id: int) -> Sequence[dict[str, Any]] | None:
    """A row a region; None when Redis does not answer."""
    regions = sorted({settings.REGION, *statements.lanes_waiting(subscription_id)})
    try:
        states = {region: default_backlog().state(Lane(subscription_id, region)) for region in regions}
    except redis.RedisError:
        return None
    now_ms = time.time() * 1000
    return [_lane_row(region, state, now_ms=now_ms) for region, state in states.items()]


def _lane_row(region: str, state: LaneState | None, *, now_ms: float) -> dict[str, Any]:
    """A lane that Redis does not know has nothing outstanding and no window."""
    flow = state.flow if state is not None else Flow()
    return {
        "region": region,
        "pushing": state is not None and state.mode == Mode.PUSH,
        "outstanding": state.outstanding if state is not None else 0,
        "window": state.window if state is not None else 0,
        "backoff_seconds": round(pause_ms(flow, now_ms=now_ms) / 1000, 1),
        "ack_ratio": f"{100 * flow.window.ack_ratio:.1f} %",
        "latency_ms": round(flow.window.latency_ms, 1),
        "spilled": state is not None and state.spilled,
    }


@admin.register(ArchiveFile)
class ArchiveFileAdmin(ReadOnlyAdmin):
    """The manifest of the archive."""

    list_display = ("path", "rows", "bytes", "written_at")
    search_fields = ("path",)
