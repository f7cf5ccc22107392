"""The console's side of the data plane: what waits, and how each subscription stands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import redis
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.request import split_domain_port
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.admin.demo import demo_page
from deliveries.admin.message_pages import MessagePages
from deliveries.admin.overview import overview_live
from deliveries.admin.readonly import ReadOnlyAdmin, publish_time_shown
from deliveries.admin.search import search_page
from deliveries.admin.subscription_pages import SubscriptionPages
from deliveries.inspection import texts
from deliveries.inspection.contents import rows_with_originals
from deliveries.models import ArchiveFile, Delivery, Message
from deliveries.push.rejected import rejected
from deliveries.rules.payload import attributes_text
from deliveries.store.statements import LAST_ID
from pushhub.common.clock import time_text
from pushhub.common.decimals import read_decimal
from pushhub.common.outages import outage_or_raise
from pushhub.common.principals import Principal
from subscriptions.console.base import caller_of
from subscriptions.iam import access
from subscriptions.iam.methods import GET_SUBSCRIPTION, PULL
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription, Topic

#: Messages in which an ordering key or an attribute is searched, and deliveries in which a result is.
SEARCHED_MESSAGES = 50_000
SEARCHED_DELIVERIES = 10_000
#: Up to this many deliveries of the viewable subscriptions are sorted for one page.
MANY_DELIVERIES = 10_000
#: Statuses of failed pushes that are offered as a filter.
RESULT_STATUSES = (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)
#: Ids of messages have more digits; what is shorter may be an ordering key.
SHORTEST_SEARCHED_ID = 15


@admin.register(Message)
class MessageAdmin(MessagePages):
    """Messages that are kept, for those who may pull them. Each one's page shows what is in it."""

    methods = {"view": PULL}
    creation = (gettext_lazy("Publish one on a topic's page, or by"), "pushhub topics publish TOPIC --message=TEXT")
    project_path = "topic__project"
    list_display = ("way", "topic", "region", "size", "publish_time", "ordering_key")
    list_display_links = None
    list_select_related = ()
    search_fields = ("=id", "=ordering_key")
    search_help_text = gettext_lazy("Id; or ordering key or attribute=value, among the newest 50,000")
    ordering = ("-id",)
    fields = ("way", "topic", "region", "publish_time", "ordering_key", "size")
    readonly_fields = fields

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Message]) -> QuerySet[Message]:
        """What waits for a subscription that the caller may pull from, and all of the projects where it may pull."""
        method = self.methods[verb]
        topics = Topic.objects.order_by().filter(project__in=rows_callable(caller, method, Project.objects.order_by()))
        subscriptions = rows_callable(caller, method, Subscription.objects.order_by())
        waiting = Delivery.objects.filter(message=OuterRef("pk"), subscription__in=subscriptions)
        return rows.filter(Q(topic__in=topics) | Exists(waiting))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        # A join would leave out the messages of deleted topics.
        return super().get_queryset(request).prefetch_related("topic__project")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Message], search_term: str
    ) -> tuple[QuerySet[Message], bool]:
        """Also look for `attribute=value`, as the attributes are stored."""
        if search_term:
            # Only ids have an index.
            oldest = Message.objects.order_by("-id").values_list("id", flat=True)[SEARCHED_MESSAGES:].first()
            queryset = queryset.filter(id__gt=oldest) if oldest is not None else queryset
        name, equals, value = search_term.partition("=")
        if not equals:
            return super().get_search_results(request, queryset, search_term)
        # A search in what a reader may not see would tell it.
        seen = rows_with_originals(caller_of(request), queryset)
        return seen.filter(attributes__contains=attributes_text({name: value})[1:-1]), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """A search for an id leads to the message's page, which knows it after the ack too."""
        term = request.GET.get("q", "").strip()
        message_id = read_decimal(term, most=LAST_ID)
        if message_id is not None and len(term) > SHORTEST_SEARCHED_ID and self.has_view_permission(request):
            return HttpResponseRedirect(reverse("admin:deliveries_message_way", args=[message_id]))
        return super().changelist_view(request, extra_context)

    @admin.display(description="ID", ordering="id")
    def way(self, row: Message) -> SafeString:
        return format_html('<a href="{}">{}</a>', reverse("admin:deliveries_message_way", args=[row.pk]), str(row.pk))

    @admin.display(description=gettext_lazy("Size"))
    def size(self, row: Message) -> int:
        return len(row.data)

    @admin.display(description=gettext_lazy("Publish time"), ordering="id")
    def publish_time(self, row: Message) -> str:
        return publish_time_shown(row.pk)


class LastResultFilter(admin.SimpleListFilter):
    """What the last attempt ended with. The choices are fixed: to collect them would read every row."""

    title = gettext_lazy("last result, of the oldest 10,000")
    parameter_name = "last_result"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        statuses = [(str(status), str(status)) for status in RESULT_STATUSES]
        return [*statuses, *((reason, texts.result_text(reason)) for reason in texts.REASONS)]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> QuerySet[Delivery]:
        if not self.value():
            return queryset
        oldest = Delivery.objects.order_by("pk").values_list("pk", flat=True)[SEARCHED_DELIVERIES:].first()
        rows = queryset.filter(last_result=self.value())
        return rows.filter(pk__lt=oldest) if oldest is not None else rows


@admin.register(Delivery)
class DeliveryAdmin(SubscriptionPages):
    """Deliveries that wait, and the pages that are no model's."""

    methods = {"view": GET_SUBSCRIPTION}
    held_on = "subscription"
    list_display = ("number", "subscription", "region", "attempts", "last_result", "last_attempt_at", "published")
    list_select_related = ("subscription__project",)
    list_filter = (LastResultFilter,)
    search_fields = ("=message__id",)
    ordering = ("id",)
    fields = ("number", "subscription", "region", "attempts", "last_result", "last_attempt_at")
    readonly_fields = fields

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the deliveries of the subscriptions that the caller may view.

        The database would read them subscription by subscription and sort them all for one page. If there are many, it
        is faster to go through all deliveries in their order until the page is full.
        """
        chosen = super().rows_for(caller, verb, rows)
        if not chosen.order_by()[MANY_DELIVERIES : MANY_DELIVERIES + 1].exists():
            return chosen
        subscriptions = rows_callable(caller, self.methods[verb], Subscription.objects.order_by())
        return rows.filter(Exists(subscriptions.filter(pk=OuterRef("subscription"))))

    @admin.display(description=gettext_lazy("message"), ordering="message_id")
    def number(self, row: Delivery) -> int:
        return row.message_id

    @admin.display(description=gettext_lazy("Publish time"), ordering="message_id")
    def published(self, row: Delivery) -> str:
        return publish_time_shown(row.message_id)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("demo/", view(demo_page), name="deliveries_demo"),
            path("rejected/", view(self.rejected), name="deliveries_rejected"),
            path("flower/", view(self.flower), name="deliveries_flower"),
            path("search/", view(search_page), name="deliveries_search"),
            path("overview/", view(overview_live), name="deliveries_overview"),
            *super().get_urls(),
        ]

    def rejected(self, request: HttpRequest) -> HttpResponse:
        """Task messages that could not be decoded: of any project, so for superusers."""
        if not access.is_root(caller_of(request)):
            raise PermissionDenied
        rows: list[dict[str, object]] = []
        unknown = ""
        try:
            rows = rejected()
        except redis.RedisError as error:
            unknown = texts.redis_text(outage_or_raise(error))
        for row in rows:
            row["at"] = time_text(datetime.fromtimestamp(float(str(row["at"])), UTC))
        title = _("Rejected task messages")
        context = {"title": title, "rows": rows, "unknown": unknown, "opts": None}
        return self.render(request, "admin/deliveries/rejected.html", **context)

    def flower(self, request: HttpRequest) -> HttpResponse:
        """Lead a superuser to Flower, at the name by which the console was reached: there the same login counts."""
        if not access.is_root(caller_of(request)):
            raise PermissionDenied
        host, _port = split_domain_port(request.get_host())
        return HttpResponseRedirect(f"http://{host}:{settings.FLOWER_ADDRESS[1]}/tasks")


@admin.register(ArchiveFile)
class ArchiveFileAdmin(ReadOnlyAdmin):
    """The manifest of the archive."""

    list_display = ("path", "rows", "bytes", "written_at")
    search_fields = ("path",)
