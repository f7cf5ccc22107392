"""The report is one file with everything in it, and its numbers are those of the metrics."""

from __future__ import annotations

import os
import re
import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from deliveries.pipeline.report import Scope, report
from subscriptions.models import Project
from tests.metricrows import add_events, add_gauge

pytestmark = pytest.mark.django_db

NAME = "projects/shop/subscriptions/orders"
NOW = datetime(2026, 11, 20, 12, 30, 15, tzinfo=UTC)


class ParsedPage(HTMLParser):
    """The text of a page, the addresses in it, and the tags that are open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "line", "rect", "path", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag, "tags are closed in order"

    def handle_data(self, data: str) -> None:
        self.text.append(data.replace("\u00a0", " "))


def push(
    hours_ago: int, n: int, *, kind: str = "ack", code: int = 200, us: int = 1000, host: str = "a.example"
) -> None:
    kinds = {"response_class": kind, "response_code": code, "host": host}
    add_events(NAME, at=NOW - timedelta(hours=hours_ago), count=n, us=us, **kinds)  # type: ignore[arg-type]


def scope(**more: object) -> Scope:
    fields = {"project": "", "length": timedelta(days=7), "objective": 0.999, "now": NOW} | more
    return Scope(**fields)  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_reported_period() -> None:
    """Given 9,990 acks and 10 failures within the week and more before it, when the week is reported, then the ratio is
    99.9 per cent and the whole error budget is spent.
    """
    push(0, 5000)
    push(100, 4990, us=2000)
    push(50, 10, kind="remote_server_5xx", code=503, us=900_000, host="b.example")
    push(24 * 8, 1000, kind="unreachable", code=0)

    text = ParsedPage(report(scope())).text

    assert text[text.index("Pushes") - 1] == "10,000"
    assert text[text.index("Acked") - 1] == "99.9 %"
    assert text[text.index("Budget spent at 99.9 %") - 1] == "100 %"
    assert "remote_server_5xx (10)" in text
    assert not any("unreachable" in part for part in text)


def test_the_worst_hosts_come_first() -> None:
    """Given hosts that fail and hosts that are slow, when they are listed, then the worst of each comes first."""
    push(1, 100, host="fine.example")
    push(1, 5, kind="unreachable", code=0, us=50, host="down.example")
    push(1, 100, us=3_000_000, host="slow.example")

    page = report(scope())

    tables = page.split("<h2>")
    assert re.findall(r"<td>(\w+)\.example", tables[1]) == ["down"]
    assert re.findall(r"<td>(\w+)\.example", tables[2]) == ["slow", "fine", "down"]


def test_one_file_has_everything(tmp_path: Path) -> None:
    """Given a report, when it is opened without a network, then nothing is missing: it names no other address."""
    push(1, 10)
    figures = {"undelivered": 5, "oldest_unacked_seconds": 7, "outstanding": 2, "push_window": 30, "backoff_ms": 1500}
    add_gauge(NAME, at=NOW - timedelta(hours=2), **figures)

    page = ParsedPage(report(scope()))

    assert page.addresses == []
    assert page.open == []
    assert "url(" not in "".join(page.text)
    titles = {"Push window and outstanding messages", "Longest push backoff (s)", "Error budget left (%)"}
    assert titles <= set(page.text)
    assert "@media (prefers-color-scheme: dark)" in "".join(page.text)


@pytest.mark.parametrize("length", [timedelta(hours=1), timedelta(days=1), timedelta(days=30)])
def test_a_report_without_pushes_says_so(length: timedelta) -> None:
    text = ParsedPage(report(scope(length=length))).text

    assert "No push failed." in text
    assert text[text.index("Pushes") - 1] == "0"


def test_an_endpoint_that_acked_nothing_is_as_bad_as_it_gets() -> None:
    push(1, 10, kind="unreachable", code=0)

    page = report(scope())

    assert '<div class="tile bad"><b>0\u00a0%</b><span>Acked</span></div>' in page
    assert page.count('<td class="bad">0\u00a0%</td>') == 3


@pytest.mark.parametrize("hours", [337, 340, 360])
def test_a_report_of_days_has_whole_days_in_its_charts(hours: int) -> None:
    """Given a length that is no whole number of days, then the charts have the pushes that the summary counts."""
    push(1, 10)
    push(24 * 14, 5)

    page = report(scope(length=timedelta(hours=hours)))

    text = ParsedPage(page).text
    assert text[text.index("Pushes") - 1] == "15"
    assert "No data" not in page.split("<h2>")[0].split("Push latency")[0]


def test_names_are_escaped() -> None:
    push(1, 1, kind="unreachable", code=0, host="<script>alert(1)</script>")

    assert "<script" not in report(scope())


def test_a_report_can_be_limited_to_a_project() -> None:
    push(1, 10)

    assert "10" in ParsedPage(report(scope(project="shop"))).text
    assert "10" not in ParsedPage(report(scope(project="other"))).text


def test_the_command_writes_the_file(tmp_path: Path) -> None:
    """Given a project, when the command is run, then it writes the file. Wrong options are refused in one line."""
    Project.objects.create(project_id="shop", number=1)
    out, output = tmp_path / "report.html", StringIO()

    call_command("pipeline", "report", "--last", "24h", "--out", str(out), "--project", "shop", stdout=output)

    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert str(out) in output.getvalue()
    for options, words in [
        (["--out", str(tmp_path / "none" / "x")], "cannot be written: No such file or directory"),
        (["--out", str(out), "--project", "none"], "Resource not found"),
        (["--out", str(out), "--objective", "100"], "must lie between 0 and 100"),
        (["--out", str(out), "--last", "a week"], "is not a length of time: give one such as 24h or 7d"),
    ]:
        with pytest.raises(CommandError, match=words):
            call_command("pipeline", "report", *options)


def test_a_report_that_the_disk_has_no_room_for_leaves_the_one_before(tmp_path: Path) -> None:
    out, limits = tmp_path / "report.html", resource.getrlimit(resource.RLIMIT_FSIZE)
    out.write_text("the one before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(CommandError, match="cannot be written: File too large"):
            call_command("pipeline", "report", "--out", str(out))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert out.read_text() == "the one before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_report_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    out, link, pipe = (tmp_path / name for name in ("report.html", "link", "pipe"))
    link.symlink_to(out)
    call_command("pipeline", "report", "--out", str(link), stdout=StringIO())
    assert link.is_symlink()
    assert out.read_text().startswith("<!doctype html>")

    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(pipe.read_bytes)
        call_command("pipeline", "report", "--out", str(pipe), stdout=StringIO())
        assert written.result().startswith(b"<!doctype html>")
    assert pipe.is_fifo()
