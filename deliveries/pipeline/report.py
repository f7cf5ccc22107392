"""The report about pushes, for the operators of endpoints: one HTML file that needs no network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Max, Sum
from django.template.loader import render_to_string
from django.utils.safestring import mark_safe

from deliveries.models import GaugeMinute, Metric, MetricDay, MetricHour, MetricMinute
from deliveries.rules.histogram import quantile
from deliveries.telemetry.series import charts
from deliveries.telemetry.series.charts import Chart, Line
from deliveries.telemetry.series.curves import CLASSES, QUANTILES
from deliveries.telemetry.series.series import DAY, HOUR, MINUTE, floor

#: Longer reports use the next coarser table.
MINUTES_UP_TO, HOURS_UP_TO = timedelta(hours=6), timedelta(days=14)
ROWS_SHOWN = 15
DEAD_LETTER = "dead_letter"
NOTHING = "Nothing was pushed."
#: A number and its unit stay on one line.
NBSP = "\u00a0"


@dataclass(frozen=True, slots=True)
class Scope:
    """What is reported: one project or "" for all, the length of time, and the share of pushes that should be acked."""

    project: str
    length: timedelta
    objective: float
    now: datetime


@dataclass(slots=True)
class Tally:
    """The pushes of a period, to a host, or of a subscription."""

    #: By response class.
    pushes: Counter[str] = field(default_factory=Counter)
    buckets: Counter[int] = field(default_factory=Counter)
    dead: int = 0

    def add(self, row: Metric) -> None:
        if row.event == DEAD_LETTER:
            self.dead += row.count
            return
        self.pushes[row.response_class] += row.count
        self.buckets.update({int(bucket): count for bucket, count in row.buckets.items()})

    @property
    def count(self) -> int:
        return self.pushes.total()

    @property
    def acked(self) -> int:
        return self.pushes["ack"]

    @property
    def ratio(self) -> float | None:
        return self.acked / self.count if self.count else None

    def meets(self, objective: float) -> bool:
        return self.ratio is None or self.ratio >= objective

    def latency_ms(self, q: float) -> float | None:
        return quantile(self.buckets, q) / 1000 if self.buckets else None

    def budget_spent(self, objective: float) -> float:
        """Return the number of failures as a share of those that the objective allows."""
        return (self.count - self.acked) / (self.count * (1 - objective)) if self.count else 0.0


@dataclass(slots=True)
class Tallies:
    """The same pushes by time, host and subscription."""

    total: Tally = field(default_factory=Tally)
    times: dict[datetime, Tally] = field(default_factory=lambda: defaultdict(Tally))
    hosts: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    subscriptions: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))


def report(scope: Scope) -> str:
    """Return the report in HTML."""
    model, period = _table(scope.length)
    # The current period is included, because readers want to see what just happened.
    end = floor(scope.now, period) + period
    start = floor(end - scope.length, period)
    tallies = _tallies(model, scope, start, end)
    times = [start + period * number for number in range((end - start) // period)]
    drawn = [*_push_charts(times, tallies, scope), *_gauge_charts(times, scope, period)]
    failing = {name: tally for name, tally in tallies.hosts.items() if tally.count > tally.acked}
    rows = partial(_rows, objective=scope.objective)
    tables = [
        ("Failing hosts", "Host", rows(failing, lambda tally: tally.acked - tally.count), "No push failed."),
        ("Slowest hosts", "Host", rows(tallies.hosts, lambda tally: -(tally.latency_ms(0.95) or 0)), NOTHING),
        ("Subscriptions", "Subscription", rows(tallies.subscriptions, lambda tally: -tally.count), NOTHING),
    ]
    context = {
        "what": f"project {scope.project}" if scope.project else "all projects",
        "start": _time(start),
        "end": _time(end),
        "now": _time(scope.now),
        "light": charts.LIGHT,
        "dark": charts.DARK,
        "tiles": _tiles(tallies.total, scope.objective),
        "figures": [mark_safe(charts.figure(chart)) for chart in drawn],  # noqa: S308 - escaped
        "tables": tables,
    }
    return render_to_string("admin/deliveries/report.html", context)


def _table(length: timedelta) -> tuple[type[Metric], timedelta]:
    if length <= MINUTES_UP_TO:
        return MetricMinute, MINUTE
    return (MetricHour, HOUR) if length <= HOURS_UP_TO else (MetricDay, DAY)


def _tallies(model: type[Metric], scope: Scope, start: datetime, end: datetime) -> Tallies:
    rows = model._default_manager.filter(at__gte=start, at__lt=end, event__in=["push", DEAD_LETTER])
    if scope.project:
        rows = rows.filter(project=scope.project)
    tallies = Tallies()
    for row in rows.iterator():
        touched = [tallies.total, tallies.times[row.at], tallies.subscriptions[row.resource]]
        for tally in [*touched, tallies.hosts[row.host]] if row.host else touched:
            tally.add(row)
    return tallies


def _push_charts(times: Sequence[datetime], tallies: Tallies, scope: Scope) -> list[Chart]:
    at = [int(time.timestamp()) for time in times]
    cells = [tallies.times.get(time) for time in times]
    requests = [
        Line(name, [float(cell.pushes[name]) if cell else 0.0 for cell in cells], number % charts.COLOURS)
        for number, name in enumerate(CLASSES)
    ]
    ratio = [100 * cell.ratio if cell and cell.ratio is not None else None for cell in cells]
    latencies = [
        Line(f"p{100 * q:.0f}", [cell.latency_ms(q) if cell else None for cell in cells], colour)
        for q, colour in zip(QUANTILES, (2, 3, 1), strict=True)
    ]
    dead = Line("dead letters", [float(cell.dead) if cell else 0.0 for cell in cells], 1)
    burnt = Line("budget left", _budget_course(cells, tallies.total, scope.objective), 0)
    return [
        Chart("Push requests by response", at, [line for line in requests if any(line.values)], stacked=True),
        Chart("Success ratio", at, [Line("acked", ratio, 0)], unit="%"),
        Chart("Error budget left", at, [burnt], unit="%"),
        Chart("Push latency", at, latencies, unit="ms"),
        Chart("Dead letters", at, [dead] if any(dead.values) else [], stacked=True, nothing="No dead letters."),
    ]


def _budget_course(cells: Iterable[Tally | None], total: Tally, objective: float) -> list[float | None]:
    """Return how much of the report's error budget is left after each period, in percent and at least zero."""
    allowed, failed, left = total.count * (1 - objective), 0, []
    for cell in cells:
        failed += cell.count - cell.acked if cell else 0
        left.append(max(100 * (1 - failed / allowed), 0.0) if allowed else None)
    return left


def _gauge_charts(times: Sequence[datetime], scope: Scope, period: timedelta) -> list[Chart]:
    """Return charts of window, backoff and backlog. Backoff and age are those of the worst subscription."""
    rows = GaugeMinute.objects.filter(at__gte=times[0], at__lt=times[-1] + period)
    if scope.project:
        rows = rows.filter(project=scope.project)
    sums = Sum("push_window"), Sum("outstanding"), Sum("undelivered"), Max("backoff_ms"), Max("oldest_unacked_seconds")
    largest: dict[datetime, list[int]] = {}
    for at, *values in rows.order_by("at").values_list("at").annotate(*sums).iterator():
        time = floor(at, period)
        largest[time] = [max(pair) for pair in zip(largest.get(time, values), values, strict=True)]

    def column(place: int, scale: float = 1) -> list[float | None]:
        return [largest[time][place] / scale if time in largest else None for time in times]

    at_seconds = [int(time.timestamp()) for time in times]
    window_lines = [Line("push window", column(0), 0), Line("outstanding", column(1), 2)]
    return [
        Chart("Push window and outstanding messages", at_seconds, window_lines),
        Chart("Longest push backoff", at_seconds, [Line("backoff", column(3, 1000), 4)], unit="s"),
        Chart("Undelivered messages", at_seconds, [Line("undelivered", column(2), 2)]),
        Chart("Age of the oldest unacked message", at_seconds, [Line("age", column(4), 3)], unit="s"),
    ]


def _tiles(total: Tally, objective: float) -> list[tuple[str, str, str]]:
    """Return what stands above the charts: each a name, a value, and whether that is good or bad."""
    spent = total.budget_spent(objective)
    return [
        ("Pushes", f"{total.count:,}", ""),
        ("Acked", _percent(total.ratio), "good" if total.meets(objective) else "bad"),
        (f"Budget spent at {_percent(objective)}", f"{100 * spent:.0f}{NBSP}%", "good" if spent <= 1 else "bad"),
        *[(f"p{100 * q:.0f}", _ms(total.latency_ms(q)), "") for q in QUANTILES],
        ("Dead letters", f"{total.dead:,}", "bad" if total.dead else ""),
    ]


def _rows(tallies: Mapping[str, Tally], order: Callable[[Tally], float], *, objective: float) -> list[dict[str, Any]]:
    """Return the rows of a table: the first ones in this order."""
    return [
        {
            "name": name,
            "count": f"{tally.count:,}",
            "mood": "" if tally.meets(objective) else "bad",
            "acked": _percent(tally.ratio),
            "latencies": [_ms(tally.latency_ms(q)) for q in QUANTILES],
            "failure": _commonest_failure(tally),
        }
        for name, tally in sorted(tallies.items(), key=lambda pair: order(pair[1]))[:ROWS_SHOWN]
    ]


def _commonest_failure(tally: Tally) -> str:
    failures = [(name, count) for name, count in tally.pushes.most_common() if name != "ack"]
    return "{} ({:,})".format(*failures[0]) if failures else ""


def _percent(ratio: float | None) -> str:
    """Return a ratio in percent, rounded down: even a thousandth of a percent is a failure."""
    return "-" if ratio is None else f"{int(round(ratio * 100_000, 6)) / 1000:g}{NBSP}%"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}{NBSP}ms" if value < 100 else f"{value:,.0f}{NBSP}ms"


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"
