"""The report about pushes, for the operators of endpoints: one HTML file that needs no network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape

from deliveries.models import GaugeMinute, Metric, MetricDay, MetricHour, MetricMinute
from deliveries.rules.histogram import merged, quantile
from deliveries.telemetry.series import charts
from deliveries.telemetry.series.charts import Chart, Line
from deliveries.telemetry.series.curves import CLASSES, QUANTILES
from deliveries.telemetry.series.series import DAY, HOUR, MINUTE, floor

#: Longer reports use the next coarser table.
MINUTES_UP_TO, HOURS_UP_TO = timedelta(hours=6), timedelta(days=14)
ROWS_SHOWN = 15
DEAD_LETTER = "dead_letter"
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

    count: int = 0
    acked: int = 0
    dead: int = 0
    classes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, row: Metric) -> None:
        if row.event == DEAD_LETTER:
            self.dead += row.count
            return
        self.count += row.count
        self.acked += row.count if row.response_class == "ack" else 0
        self.classes[row.response_class] += row.count
        self.buckets = merged([self.buckets, {int(bucket): count for bucket, count in row.buckets.items()}])

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
    sections = [
        _summary(tallies.total, scope),
        f'<section class="charts">{"".join(map(charts.figure, drawn))}</section>',
        _table_html("Failing hosts", "Host", _worst(tallies.hosts), scope, nothing="No push failed."),
        _table_html("Slowest hosts", "Host", _slowest(tallies.hosts), scope, nothing="Nothing was pushed."),
        _table_html(
            "Subscriptions", "Subscription", _busiest(tallies.subscriptions), scope, nothing="Nothing was pushed."
        ),
    ]
    return _page(scope, start, end, sections)


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
        Line(name, [float(cell.classes.get(name, 0)) if cell else 0.0 for cell in cells], number % charts.COLOURS)
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
    minutes: dict[datetime, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    names = ("at", "push_window", "outstanding", "undelivered", "backoff_ms", "oldest_unacked_seconds")
    for at, window, outstanding, undelivered, backoff_ms, age in rows.values_list(*names).iterator():
        kept = minutes[at]
        kept[:] = [
            kept[0] + window,
            kept[1] + outstanding,
            kept[2] + undelivered,
            max(kept[3], backoff_ms),
            max(kept[4], age),
        ]
    largest: dict[datetime, list[int]] = {}
    for at, values in minutes.items():
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


Named = list[tuple[str, Tally]]


def _worst(tallies: dict[str, Tally]) -> Named:
    failing = [(name, tally) for name, tally in tallies.items() if tally.count > tally.acked]
    return sorted(failing, key=lambda pair: pair[1].acked - pair[1].count)[:ROWS_SHOWN]


def _slowest(tallies: dict[str, Tally]) -> Named:
    return sorted(tallies.items(), key=lambda pair: -(pair[1].latency_ms(0.95) or 0))[:ROWS_SHOWN]


def _busiest(tallies: dict[str, Tally]) -> Named:
    return sorted(tallies.items(), key=lambda pair: -pair[1].count)[:ROWS_SHOWN]


def _summary(total: Tally, scope: Scope) -> str:
    spent = total.budget_spent(scope.objective)
    tiles = [
        ("Pushes", f"{total.count:,}", ""),
        ("Acked", _percent(total.ratio), "good" if total.meets(scope.objective) else "bad"),
        (f"Budget spent at {_percent(scope.objective)}", f"{100 * spent:.0f}{NBSP}%", "good" if spent <= 1 else "bad"),
        *[(f"p{100 * q:.0f}", _ms(total.latency_ms(q)), "") for q in QUANTILES],
        ("Dead letters", f"{total.dead:,}", "bad" if total.dead else ""),
    ]
    cells = "".join(
        f'<div class="tile {mood}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value, mood in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _table_html(title: str, what: str, rows: Named, scope: Scope, *, nothing: str) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in (what, "Pushes", "Acked", "p50", "p95", "p99", "Most frequent failure")
    )
    body = "".join(
        f"<tr><td>{escape(name)}</td><td>{tally.count:,}</td>"
        f'<td class="{"" if tally.meets(scope.objective) else "bad"}">{_percent(tally.ratio)}</td>'
        + "".join(f"<td>{_ms(tally.latency_ms(q))}</td>" for q in QUANTILES)
        + f"<td>{escape(_commonest_failure(tally))}</td></tr>"
        for name, tally in rows
    )
    empty = f'<tr><td colspan="7">{escape(nothing)}</td></tr>'
    return (
        f"<section><h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body or empty}</tbody></table></section>"
    )


def _commonest_failure(tally: Tally) -> str:
    failures = {name: count for name, count in tally.classes.items() if name != "ack"}
    if not failures:
        return ""
    name = max(failures, key=lambda failure: failures[failure])
    return f"{name} ({failures[name]:,})"


def _percent(ratio: float | None) -> str:
    """Return a ratio in percent, rounded down: even a thousandth of a percent is a failure."""
    return "-" if ratio is None else f"{int(round(ratio * 100_000, 6)) / 1000:g}{NBSP}%"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}{NBSP}ms" if value < 100 else f"{value:,.0f}{NBSP}ms"


CSS = """
:root { color-scheme: light dark; --paper:#ffffff; --rule:#d8dee4; --soft:#f6f8fa; %(light)s }
@media (prefers-color-scheme: dark) { :root { --paper:#14181d; --rule:#343b43; --soft:#1d232a; %(dark)s } }
body { background: var(--paper); color: var(--chart-ink); font: 15px/1.5 system-ui, sans-serif; margin: 2em auto;
  max-width: 62em; padding: 0 1.5em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin-top: 2em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8em, 1fr)); gap: .75em; margin: 1.5em 0 2em; }
.tile { background: var(--soft); border: 1px solid var(--rule); border-radius: 6px; padding: .6em .8em; }
.tile b { display: block; font-size: 1.2em; } .tile span { font-size: .85em; opacity: .8; }
.good b { color: var(--c0); } .bad b, td.bad { color: var(--c1); font-weight: 600; }
table { border-collapse: collapse; width: 100%%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: .35em .6em; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; white-space: normal; }
footer { margin-top: 3em; font-size: .85em; opacity: .75; }
%(charts)s
"""


def _page(scope: Scope, start: datetime, end: datetime, sections: Iterable[str]) -> str:
    css = CSS % {"light": charts.LIGHT, "dark": charts.DARK, "charts": charts.STYLE}
    what = f"project {scope.project}" if scope.project else "all projects"
    time = f"{start.astimezone(UTC):%Y-%m-%d %H:%M} to {end.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>PushHub: {escape(what)}</title><style>{css}</style></head><body>"
        f"<header><h1>Push deliveries of {escape(what)}</h1>{time}</header>"
        f"<main>{''.join(sections)}</main>"
        f"<footer>Made by PushHub at {scope.now.astimezone(UTC):%Y-%m-%d %H:%M} UTC. Quantiles are exact to 1.1 %. "
        "Windows, backoff and backlog are taken each minute and kept for eight days; the charts show the largest of "
        "each period. Percentages are rounded down.</footer></body></html>\n"
    )
