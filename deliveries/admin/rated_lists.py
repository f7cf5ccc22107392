"""What the lists of subscriptions and of topics share: short names, and the curve of each row's events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from deliveries.inspection.overview import rates
from deliveries.telemetry.series import charts
from pushhub.common.clock import utcnow
from subscriptions.console.base import ProjectChangeList
from subscriptions.console.navigation import short_name


class RatedChangeList(ProjectChangeList):
    """The rows of a page. Each knows its `rates` and its `short_name`."""

    #: The field of a row that has its own id.
    own_id: ClassVar[str]

    event: ClassVar[str]

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        rates_by_name = rates(self.event, [row.name for row in rows], now=utcnow())
        for row in rows:
            row.short_name = short_name(request, row.project.project_id, getattr(row, self.own_id))
            row.rates = rates_by_name.get(row.name, [])
        self.result_list = rows


def name_link(row: Any, page: str) -> str:
    """Return a row's short name, as a link to its page with this URL name."""
    return format_html('<a href="{}" title="{}">{}</a>', reverse(page, args=[row.pk]), row.name, row.short_name)


def curve(values: Sequence[float]) -> SafeString:
    """Return the sparkline of rates as HTML that is not escaped again; empty without values."""
    return mark_safe(charts.sparkline(values))  # noqa: S308 - ours
