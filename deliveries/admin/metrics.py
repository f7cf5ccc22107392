"""The console's charts of a subscription, and the ledger of counted segments."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import redis
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.backlog.regions import regions_unserved
from deliveries.journal.alarm import alarms
from deliveries.metrics import charts, curves
from deliveries.metrics.series import floor
from deliveries.models import Segment
from pushhub.common.clock import utcnow
from subscriptions.console.base import check_row
from subscriptions.console.tabs import subscription_tabs
from subscriptions.models import Subscription

LIST_TIME_SERIES = "google.monitoring.v3.MetricService.ListTimeSeries"

#: The choices of the page: its word in the address, how long, and by what periods.
RANGES = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    "24h": (timedelta(days=1), timedelta(minutes=20)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
    "30d": (timedelta(days=30), timedelta(hours=8)),
}
#: How long a segment in quarantine is an alarm; after that it is in the list only.
QUARANTINE_SHOWN = timedelta(days=1)


@admin.register(Segment)
class SegmentAdmin(ReadOnlyAdmin):
    """Segments that were counted or put aside, and the pages of charts."""

    list_display = ("name", "state", "reason", "rows", "job", "at")
    list_filter = ("state", "job")
    search_fields = ("name",)
    ordering = ("-at",)
    #: Only the counters use it.
    exclude = ("place",)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("charts/<int:subscription_id>/", view(self.charts), name="deliveries_charts"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list, below the journals that stand still and the regions without a worker."""
        return super().changelist_view(request, {**(extra_context or {}), **_alarms()})

    def charts(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """How a subscription fares."""
        if not request.user.has_perm("deliveries.view_delivery"):
            raise PermissionDenied
        subscription = get_object_or_404(Subscription.objects.select_related("project"), pk=subscription_id)
        check_row(request, subscription, LIST_TIME_SERIES, {"name": subscription.project.name})
        chosen = request.GET.get("range", "")
        chosen = chosen if chosen in RANGES else "1h"
        length, period = RANGES[chosen]
        # With the period that is not over yet.
        end = floor(utcnow(), period) + period
        span = curves.Span(subscription.project.project_id, subscription.subscription_id, end - length, end, period)
        context = {
            **self.admin_site.each_context(request),
            "opts": Subscription._meta,
            "title": subscription.name,
            "tabs": subscription_tabs(subscription, "metrics"),
            "ranges": list(RANGES),
            "chosen": chosen,
            **_alarms(),
            "style": mark_safe(charts.STYLE),  # noqa: S308 - ours
            "light": charts.LIGHT,
            "dark": charts.DARK,
            "figures": [mark_safe(charts.figure(chart)) for chart in subscription_charts(span)],  # noqa: S308 - escaped
        }
        return TemplateResponse(request, "admin/deliveries/charts.html", context)


def subscription_charts(span: curves.Span) -> list[charts.Chart]:
    """The six charts of a subscription."""
    times = span.times
    colours = {name: number % charts.COLOURS for number, name in enumerate(curves.CLASSES)}
    requests = [charts.Line(name, values, colours[name]) for name, values in curves.pushes(span).items()]
    quantiles = curves.latencies_ms(span)
    latencies = [
        charts.Line(f"p{100 * q:.0f}", values, colour)
        for (q, values), colour in zip(quantiles.items(), (2, 3, 1), strict=True)
    ]
    outstanding = charts.Line(_("Outstanding"), curves.gauge(span, "subscription/num_outstanding_messages"), 2)
    window = charts.Line(_("Push window"), curves.gauge(span, "subscription/push_window", own=True), 0)
    undelivered = charts.Line(_("Undelivered"), curves.gauge(span, "subscription/num_undelivered_messages"), 2)
    age = charts.Line(
        _("Oldest unacked"), curves.gauge(span, "subscription/oldest_unacked_message_age", largest=True), 3
    )
    backoff = [
        value / 1000 if value is not None else None
        for value in curves.gauge(span, "subscription/push_backoff", own=True, largest=True)
    ]
    dead = charts.Line(_("Dead letters"), curves.counted(span, "subscription/dead_letter_message_count"), 1)
    nothing = _("Nothing was recorded in this time.")
    return [
        charts.Chart(_("Push requests by response"), times, requests, stacked=True, nothing=nothing),
        charts.Chart(_("Push latency"), times, latencies, unit="ms", nothing=nothing),
        charts.Chart(_("Push window and outstanding messages"), times, [window, outstanding], nothing=nothing),
        charts.Chart(_("Undelivered messages"), times, [undelivered], nothing=nothing),
        charts.Chart(_("Age of the oldest unacked message"), times, [age], unit="s", nothing=nothing),
        charts.Chart(_("Push backoff"), times, [charts.Line(_("Push backoff"), backoff, 4)], unit="s", nothing=nothing),
        charts.Chart(_("Dead letters"), times, [dead] if any(dead.values) else [], stacked=True, nothing=nothing),
    ]


def _alarms() -> dict[str, Any]:
    """What alarms.html shows."""
    recent = Segment.objects.filter(state=Segment.State.QUARANTINED, at__gte=utcnow() - QUARANTINE_SHOWN)
    found: dict[str, Any] = {"quarantined": recent.count()}
    try:
        return {**found, "alarms": alarms(), "unserved": regions_unserved()}
    except redis.RedisError:
        return found
