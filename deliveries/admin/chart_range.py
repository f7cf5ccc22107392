"""The time that a page of charts shows, and the links that move and zoom it. All of it is in the page's address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from deliveries.telemetry.series.expiry import HOURS_KEPT, MINUTES_KEPT
from deliveries.telemetry.series.series import DAY, EARLIEST, HOUR, MINUTE, floor, within_reach
from pushhub.common.errors import InvalidArgument
from pushhub.common.protojson import format_timestamp, parse_timestamp

#: Ranges that end now, by their word in the address.
RANGES = {
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "24h": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
#: A chart has the shortest of the periods with which it has no more of them than this. So that of a day has hours: its
#: minutes are thousands of rows, each with a histogram.
MAX_PERIODS = 90
PERIODS = (
    *(minutes * MINUTE for minutes in (1, 2, 5, 10)),
    *(hours * HOUR for hours in (1, 2, 4, 8)),
    *(days * DAY for days in (1, 2, 5, 10)),
)
SHORTEST, LONGEST = timedelta(minutes=10), timedelta(days=730)


@dataclass(frozen=True, slots=True)
class ChartRange:
    """From when to when, by which periods. `name` is empty unless it is one of RANGES and ends now."""

    start: datetime
    end: datetime
    period: timedelta
    name: str = ""
    compares: bool = False

    @property
    def length(self) -> timedelta:
        return self.end - self.start

    def query(self) -> str:
        """Return the range as the query of an address."""
        if self.name:
            fields = {"range": self.name}
        else:
            fields = {"start": format_timestamp(self.start), "end": format_timestamp(self.end)}
        return urlencode(fields | ({"compare": "week"} if self.compares else {}))


def parse_range(fields: Mapping[str, str], *, now: datetime) -> ChartRange:
    """Return the range that an address asks for, or the last hour if it names none."""
    compares = fields.get("compare") == "week"
    start, end = _time(fields.get("start", "")), _time(fields.get("end", ""))
    if start is not None and end is not None and start < end:
        return range_between(start, end, compares=compares, now=now)
    return range_named(fields.get("range", ""), compares=compares, now=now)


def range_named(name: str, *, compares: bool, now: datetime) -> ChartRange:
    """Return a range that ends now, with the period that is not over yet."""
    name = name if name in RANGES else "1h"
    period = _period(RANGES[name], now - RANGES[name], now=now)
    end = floor(now, period) + period
    return ChartRange(end - RANGES[name], end, period, name, compares)


def range_between(start: datetime, end: datetime, *, compares: bool, now: datetime) -> ChartRange:
    """Return the range between two times in whole periods: not too short or long, and not ahead of now."""
    length = min(max(end - start, SHORTEST), LONGEST)
    middle = start + (end - start) / 2
    end = min(max(middle + length / 2, EARLIEST + length), floor(now, MINUTE) + MINUTE)
    period = _period(length, end - length, now=now)
    last = floor(end - timedelta(microseconds=1), period) + period
    return ChartRange(floor(end - length, period), last, period, compares=compares)


def moved(shown: ChartRange, lengths: float, *, now: datetime) -> ChartRange:
    """Return the range that many of its lengths later."""
    shift = shown.length * lengths
    return range_between(shown.start + shift, shown.end + shift, compares=shown.compares, now=now)


def zoomed(shown: ChartRange, factor: float, *, now: datetime) -> ChartRange:
    """Return the range around the same middle that is `factor` times as long."""
    middle, half = shown.start + shown.length / 2, shown.length * factor / 2
    return range_between(middle - half, middle + half, compares=shown.compares, now=now)


def _period(length: timedelta, start: datetime, *, now: datetime) -> timedelta:
    """Return the shortest period that draws a range: minutes and hours are kept for a time only."""
    least = DAY if now - start > HOURS_KEPT else HOUR if now - start > MINUTES_KEPT else MINUTE
    return next(period for period in PERIODS if period >= least and length / period <= MAX_PERIODS)


def _time(text: str) -> datetime | None:
    try:
        return within_reach(parse_timestamp(text, field=""))
    except InvalidArgument:
        return None
