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
from subscriptions.console.navigation import chosen_project


class RatedChangeList(ProjectChangeList):
    """The rows of a page. Each knows its `rates` and whether its project goes without saying (`is_short`)."""

    event: ClassVar[str]

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows: list[Any] = list(self.result_list)
        rates_by_name = rates(self.event, [row.name for row in rows], now=utcnow())
        for row in rows:
            row.is_short = bool(chosen_project(request))
            row.rates = rates_by_name.get(row.name, [])
        self.result_list = rows


def name_link(row: Any, own_id: str, page: str) -> str:
    """Return a row's short name, as a link to its page with this URL name."""
    text = own_id if row.is_short else f"{row.project.project_id} / {own_id}"
    return format_html('<a href="{}" title="{}">{}</a>', reverse(page, args=[row.pk]), row.name, text)


def curve(values: Sequence[float]) -> SafeString:
    """Return the sparkline of rates as HTML that is not escaped again; empty without values."""
    return mark_safe(charts.sparkline(values))  # noqa: S308 - ours
