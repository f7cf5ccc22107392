"""The list of subscriptions: how each fares, beside what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from django.contrib import admin
from django.db.models import Case, Count, Exists, F, Min, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce, Concat, Greatest
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from deliveries.admin.rated_lists import RatedChangeList, curve, name_link
from deliveries.inspection.conditions import ANSWERED, Condition
from deliveries.inspection.failing import conditions_of, last_results
from deliveries.inspection.lanes import LaneView
from deliveries.inspection.notices import Finding, redis_notice
from deliveries.inspection.overview import last_round, last_rounds
from deliveries.inspection.status import level_of
from deliveries.models import Delivery, GaugeMinute
from deliveries.rules.ids import publish_time
from pushhub.common.clock import duration_text, minute_text, utcnow
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.console.base import ConsoleAdmin, caller_of
from subscriptions.console.tabs import LIST_TIME_SERIES
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription

#: The column of a subscription's full name, as gauges have it.
NAME = Concat(Value("projects/"), "project__project_id", Value("/subscriptions/"), "subscription_id")


#: The fields of gauges by what the columns of the list are called, after `gauge_`.
GAUGES = {
    "undelivered": "undelivered",
    "oldest_seconds": "oldest_unacked_seconds",
    "backoff_ms": "backoff_ms",
    "unserved": "unserved",
}


#: Of the messages that have come since the last gauges, so many are counted.
MAX_NEWER = 1000


class FailingFilter(admin.SimpleListFilter):
    """Those that the last gauges found failing, or with messages that wait."""

    title = _("health")
    parameter_name = "health"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("failing", _("failing")), ("waiting", _("messages wait"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == "failing":
            # One look at the gauges of each row, in place of one for each figure.
            rows: QuerySet[Any] = queryset.alias(held_back=_last_gauge(Greatest("unserved", "backoff_ms")))
            return rows.filter(held_back__gt=0, paused=False).exclude(push_endpoint="")
        return queryset.filter(gauge_undelivered__gt=0) if self.value() == "waiting" else queryset


def with_gauges(rows: QuerySet[Subscription]) -> QuerySet[Any]:
    """Return the rows with their last gauges; a subscription without a gauge had nothing that waits."""
    rows = rows.annotate(full_name=NAME)
    return rows.annotate(**{f"gauge_{name}": _last_gauge(of) for name, of in GAUGES.items()})


def _last_gauge(of: str | Greatest) -> Coalesce:
    """Return a figure of the newest gauges of a subscription, or 0 unless they are of the last round.

    It is not looked up by the time of that round, which PostgreSQL's statistics don't know yet: of two indexes it may
    take the one that has the gauges of all subscriptions at that time, for each row of the list.
    """
    figure = Case(When(at=Subquery(last_rounds(utcnow())), then=of), default=0)
    newest = GaugeMinute.objects.filter(resource=OuterRef("full_name")).order_by("-at")
    return Coalesce(Subquery(newest.values_list(figure, flat=True)[:1]), 0)


def count_newer(rows: Sequence[Any]) -> None:
    """Count what waits, up to MAX_NEWER, where nothing did at the last gauges: it has come since.

    The age of the oldest is known if all were counted.
    """
    quiet = {row.pk: row for row in rows if not row.gauge_undelivered}
    has_any = Exists(Delivery.objects.filter(subscription=OuterRef("pk")))
    for pk in Subscription.objects.filter(has_any, pk__in=list(quiet)).values_list("pk", flat=True):
        waiting = Delivery.objects.filter(subscription=pk).order_by().values("message_id")[: MAX_NEWER + 1]
        found = waiting.aggregate(count=Count("message_id"), oldest=Min("message_id"))
        row = quiet[pk]
        row.gauge_undelivered = min(found["count"], MAX_NEWER)
        row.has_more = found["count"] > MAX_NEWER
        if found["oldest"] is not None and not row.has_more:
            row.gauge_oldest_seconds = max((utcnow() - publish_time(found["oldest"])).total_seconds(), 0)


def set_conditions(rows: Sequence[Any]) -> list[Finding]:
    """Give each row with gauges its `condition`, its worst `lane` and its `last_result`.

    Returns a notice if Redis does not tell of all of them.
    """
    count_newer(rows)
    pushed = [row for row in rows if row.push_endpoint and row.gauge_undelivered and not row.paused]
    conditions: dict[int, tuple[Condition, LaneView]] = {}
    cause = None
    try:
        conditions = conditions_of(pushed)
        cause = Cause.REDIS_AWAY if len(conditions) < len(pushed) else None
    except redis.RedisError as error:
        cause = outage_or_raise(error)
    results = last_results({pk: lane for pk, (_, lane) in conditions.items()})
    for row in rows:
        found, row.lane = conditions.get(row.pk, (Condition.REDIS_DOWN, None))
        row.condition = _condition(row, found)
        row.last_result = results.get(row.pk, "")
    return [redis_notice(cause)] if cause else []


def health_badge(row: Any) -> str:
    """Return in a few words how a row's deliveries fare now, and the result of the last failed push."""
    word = str(row.condition.label)
    text = f"{word}: {row.last_result}" if row.last_result and row.condition in ANSWERED else word
    return format_html(
        '<span class="badge {0}" title="{1}"><span class="clip">{1}</span></span>',
        level_of(row.condition, row.lane),
        text,
    )


class SubscriptionChangeList(RatedChangeList):
    """The subscriptions of a page, with the state of their lanes and the rates of their pushes."""

    event = "push"
    own_id = "subscription_id"

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        taken = last_round(utcnow())
        #: The minute of the gauges; "" if there are none.
        self.looked = minute_text(taken) if taken else ""
        self.findings = [(notice, None) for notice in set_conditions(self.result_list)]
        projects = Project.objects.filter(pk__in={row.project_id for row in self.result_list})
        charted = set(rows_callable(caller_of(request), LIST_TIME_SERIES, projects).values_list("pk", flat=True))
        for row in self.result_list:
            row.may_open_charts = row.project_id in charted


class SubscriptionList(ConsoleAdmin):
    """What the data plane adds to the control plane's pages of subscriptions."""

    list_display = ("page_link", "health", "undelivered", "oldest", "rate", "topic_name", "endpoint")
    list_filter = (FailingFilter, "detached", "paused", "project")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[SubscriptionChangeList]:
        return SubscriptionChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Subscription]:
        return with_gauges(super().get_queryset(request))

    @admin.display(description=_("name"), ordering="subscription_id")
    def page_link(self, row: Any) -> str:
        return name_link(row, "admin:deliveries_state")

    @admin.display(description=_("topic"), ordering="topic__topic_id")
    def topic_name(self, row: Any) -> str:
        if row.topic is None:
            return "_deleted-topic_"
        return str(row.topic.topic_id if row.topic.project_id == row.project_id else row.topic.name)

    @admin.display(description=_("push endpoint"), ordering="push_endpoint")
    def endpoint(self, row: Any) -> str:
        if not row.push_endpoint:
            return str(_("pull"))
        return format_html('<span class="clip mono" title="{0}">{0}</span>', row.push_endpoint)

    @admin.display(description=_("Health"), ordering=F("gauge_backoff_ms").desc())
    def health(self, row: Any) -> str:
        return health_badge(row)

    @admin.display(description=_("Waiting"), ordering="gauge_undelivered")
    def undelivered(self, row: Any) -> str:
        more = "+" if getattr(row, "has_more", False) else ""
        return format_html('<span class="number">{}{}</span>', row.gauge_undelivered, more)

    @admin.display(description=_("Oldest"), ordering="gauge_oldest_seconds")
    def oldest(self, row: Any) -> str:
        if not row.gauge_oldest_seconds:
            return "-"
        return format_html('<span class="number">{}</span>', duration_text(row.gauge_oldest_seconds * 1000))

    @admin.display(description=_("Pushes"))
    def rate(self, row: Any) -> str:
        """Return the curve of its pushes, as a link to its charts if the reader may open them."""
        if not row.may_open_charts:
            return curve(row.rates)
        label = _("Charts of %(name)s") % {"name": row.subscription_id}
        address = reverse("admin:deliveries_charts", args=[row.pk])
        return format_html(
            '<a class="curve" href="{}" aria-label="{}">{}</a>', address, label, curve(row.rates) or _("charts")
        )


def _condition(row: Any, of_lane: Condition) -> Condition:
    if row.detached:
        return Condition.DETACHED
    if not row.push_endpoint:
        return Condition.PULLED
    if row.paused:
        return Condition.PAUSED
    return of_lane if row.gauge_undelivered else Condition.IDLE


admin.site.extend(Subscription, SubscriptionList)  # type: ignore[attr-defined]
