"""The list of segments, with alarms of journals and regions, and the address of a subscription's charts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import redis
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from deliveries.admin.chart_pages import chart_page
from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.regions import regions_unserved
from deliveries.inspection import texts
from deliveries.models import Segment
from deliveries.telemetry.journal.alarm import alarms
from pushhub.common.clock import utcnow
from pushhub.common.outages import outage_or_raise
from subscriptions.console.base import caller_of
from subscriptions.iam import access

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
        return [path("charts/<int:subscription_id>/", view(self.charts), name="deliveries_charts"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list, below the journals that have stopped and the regions without a worker."""
        return super().changelist_view(request, {**(extra_context or {}), **_alarms(request)})

    def charts(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """The Metrics tab of a subscription."""
        return chart_page(request, subscription_id, self.admin_site.each_context(request) | _alarms(request))


def _alarms(request: HttpRequest) -> dict[str, Any]:
    """What alarms.html shows: to operators alone, as it names hosts and tells of all tenants."""
    if not access.is_root(caller_of(request)):
        return {}
    recent = Segment.objects.filter(state=Segment.State.QUARANTINED, at__gte=utcnow() - QUARANTINE_SHOWN)
    counts: dict[str, Any] = {"quarantined": recent.count()}
    client = impatient_backlog().shared
    try:
        return {**counts, "alarms": alarms(client), "unserved": regions_unserved(client)}
    except redis.RedisError as error:
        return {**counts, "unknown": texts.redis_text(outage_or_raise(error))}
