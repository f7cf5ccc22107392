"""The Metrics tab of a subscription: its charts over a range, beside those of the week before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _

from deliveries.admin.chart_range import RANGES, ChartRange, moved, parse_range, range_named, zoomed
from deliveries.inspection.counting import NOT_COUNTED, counting_level, counting_text
from deliveries.telemetry.series import charts, curves
from deliveries.telemetry.series.coverage import Counting, Coverage, counting, coverage
from deliveries.telemetry.series.expiry import MINUTES_KEPT
from pushhub.common.clock import time_text, utcnow
from subscriptions.console.base import caller_of, check_row
from subscriptions.console.tabs import LIST_TIME_SERIES, tabs_of
from subscriptions.models import Subscription

#: The colours of charts other than that of responses, by number.
GREEN, RED, BLUE, ORANGE, PURPLE = range(5)


def chart_page(request: HttpRequest, subscription_id: int, shared: dict[str, Any]) -> HttpResponse:
    """Show how a subscription fares in the range that the address names."""
    if not request.user.has_perm("deliveries.view_delivery"):
        raise PermissionDenied
    rows = Subscription.objects.select_related("project", "dead_letter_topic")
    subscription = get_object_or_404(rows, pk=subscription_id)
    check_row(request, subscription, LIST_TIME_SERIES, {"name": subscription.project.name})
    now = utcnow()
    shown = parse_range(request.GET, now=now)
    state = counting()
    drawn = subscription_charts(subscription, shown, state)
    context = {
        **shared,
        "opts": Subscription._meta,
        "title": subscription.name,
        "tabs": tabs_of(subscription, "metrics", caller=caller_of(request)),
        "counting": counting_text(state),
        "counting_level": counting_level(state),
        "shown": shown,
        "start": time_text(shown.start),
        "end": time_text(shown.end),
        "ranges": [
            (name, name == shown.name, range_named(name, compares=shown.compares, now=now).query()) for name in RANGES
        ],
        "moves": [
            (_("Earlier"), moved(shown, -1, now=now).query()),
            (_("Later"), moved(shown, 1, now=now).query()),
            (_("Zoom in"), zoomed(shown, 0.5, now=now).query()),
            (_("Zoom out"), zoomed(shown, 2, now=now).query()),
        ],
        "comparison": replace(shown, compares=not shown.compares).query(),
        "light": charts.LIGHT,
        "dark": charts.DARK,
        "figures": [mark_safe(charts.figure(chart)) for chart in drawn],  # noqa: S308 - escaped
    }
    return TemplateResponse(request, "admin/deliveries/charts.html", context)


def subscription_charts(subscription: Subscription, shown: ChartRange, state: Counting) -> list[charts.Chart]:
    """Return the seven charts of a subscription."""
    name = subscription.subscription_id
    span = curves.Span(subscription.project.project_id, name, shown.start, shown.end, shown.period)

    def charts_of(read: curves.Span) -> list[charts.Chart]:
        known = coverage(read, state.counted_to)
        counts, gauges = curves.counts(read, known.counted), curves.gauges(read, known.taken)
        return _count_charts(span, counts, known, subscription, state) + _gauge_charts(span, gauges, known)

    drawn = charts_of(span)
    if not shown.compares:
        return drawn
    compared = charts_of(span.week_before)
    return [replace(chart, before=_before(before)) for chart, before in zip(drawn, compared, strict=True)]


def _before(chart: charts.Chart) -> list[charts.Line]:
    """Return the lines of the week before; columns become the line of their sum."""
    lines = chart.lines
    if chart.stacked and lines:
        columns = zip(*(line.values for line in lines), strict=True)
        sums = [None if all(value is None for value in column) else sum(filter(None, column)) for column in columns]
        lines = [charts.Line(_("All"), sums, charts.COLOURS - 2)]
    label = _("%(line)s, a week before")
    return [charts.Line(label % {"line": line.label}, line.values, line.colour) for line in lines]


def _count_charts(
    span: curves.Span, counts: curves.Counts, known: Coverage, subscription: Subscription, state: Counting
) -> list[charts.Chart]:
    """Return the charts of what is counted: pushes, their latencies and dead letters."""
    colours = {name: number for number, name in enumerate(curves.CLASSES)}
    requests = [charts.Line(name, values, colours[name]) for name, values in counts.pushes.items()]
    latencies = [
        charts.Line(f"p{100 * q:.0f}", values, colour)
        for (q, values), colour in zip(counts.latencies_ms.items(), (BLUE, ORANGE, RED), strict=True)
    ]
    has_dead = any(counts.dead_letters)
    dead = [charts.Line(_("Dead letters"), counts.dead_letters, RED)] if has_dead else []
    reason = _uncounted(span, state)
    shared: dict[str, Any] = {
        "times": span.times,
        "unknown": [not counted for counted in known.counted],
        "no_data": _("no data"),
    }
    no_push = reason or (
        _("No message was pushed in this time.")
        if subscription.push_endpoint
        else _("Messages of this subscription are pulled, not pushed.")
    )
    no_dead = _("The subscription has no dead letter topic.")
    if subscription.dead_letter_topic_id:
        no_dead = reason or _("No message was dead-lettered in this time.")
    return [
        charts.Chart(title=_("Push requests by response"), lines=requests, stacked=True, nothing=no_push, **shared),
        charts.Chart(title=_("Push latency"), lines=latencies, unit="ms", nothing=no_push, **shared),
        charts.Chart(title=_("Dead letters"), lines=dead, stacked=True, nothing=no_dead, **shared),
    ]


def _gauge_charts(span: curves.Span, gauges: curves.Gauges, known: Coverage) -> list[charts.Chart]:
    """Return the charts of what is written down each minute."""
    is_old = utcnow() - span.end > MINUTES_KEPT
    shared: dict[str, Any] = {
        "times": span.times,
        "unknown": [not taken for taken in known.taken],
        "no_data": _("no data"),
        "nothing": _("The state of subscriptions is kept for %(days)d days.") % {"days": MINUTES_KEPT.days}
        if is_old
        else _("Nothing was recorded in this time: no maintenance worker ran."),
    }
    window = charts.Line(_("Push window"), gauges.push_window, GREEN)
    outstanding = charts.Line(_("Outstanding"), gauges.outstanding, BLUE)
    undelivered = charts.Line(_("Undelivered"), gauges.undelivered, BLUE)
    age = charts.Line(_("Oldest unacked"), gauges.oldest_unacked_seconds, ORANGE)
    backoff = charts.Line(_("Push backoff"), gauges.backoff_seconds, PURPLE)
    return [
        charts.Chart(title=_("Push window and outstanding messages"), lines=[window, outstanding], **shared),
        charts.Chart(title=_("Undelivered messages"), lines=[undelivered], **shared),
        charts.Chart(title=_("Age of the oldest unacked message"), lines=[age], unit="s", **shared),
        charts.Chart(title=_("Push backoff"), lines=[backoff], unit="s", **shared),
    ]


def _uncounted(span: curves.Span, state: Counting) -> str:
    """Return why no event of the time can be counted, if that is so."""
    if not settings.JOURNAL:
        return str(NOT_COUNTED)
    if state.counted_to is None:
        return _("Nothing has been counted yet. The maintenance worker counts pushes a few seconds after they end.")
    if state.counted_to <= span.start:
        return _("This time is not counted yet. %(state)s") % {"state": counting_text(state)}
    return ""
