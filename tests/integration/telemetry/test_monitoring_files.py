"""The alert rules and the dashboard of docs/monitoring name only metrics that `/metrics` exports, and all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deliveries.telemetry.export.prometheus import metrics_text

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"
METRIC = re.compile(r"\bpushhub_\w+")


@pytest.fixture
def exported(redis_url: str) -> set[str]:
    """Return the names of all series; a histogram has three."""
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", metrics_text(), re.M):
        names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    return names


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rules: list[dict[str, Any]] = [rule for group in groups for rule in group["rules"]]
    assert all({"alert", "expr", "labels", "annotations"} <= rule.keys() for rule in rules)
    assert all(rule["expr"].count("(") == rule["expr"].count(")") for rule in rules)
    return [rule["expr"] for rule in rules]


def dashboard_expressions() -> Iterator[str]:
    board = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_every_metric_of_an_alert_is_exported(exported: set[str]) -> None:
    expressions = alert_expressions()
    assert len(expressions) > 5
    assert set(METRIC.findall(" ".join(expressions))) <= exported


def test_the_dashboard_shows_every_exported_metric_and_no_other(exported: set[str]) -> None:
    shown = set(METRIC.findall(" ".join(dashboard_expressions())))
    assert shown <= exported
    assert {name.removesuffix("_bucket") for name in shown} >= {
        name for name in exported if not name.endswith(("_bucket", "_sum")) and "latency" not in name
    }


def test_the_page_names_every_exported_metric(exported: set[str]) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    is_histogram = re.compile("latency|size_bytes").search
    names = {re.sub(r"_(bucket|sum|count)$", "", name) if is_histogram(name) else name for name in exported}
    assert [name for name in sorted(names) if not _is_named(name, text)] == []


def _is_named(name: str, text: str) -> bool:
    """Return whether a page names a metric in full, or as `_rest` after another metric of the same resource."""
    short = "_" + name.removeprefix("pushhub_subscription_").removeprefix("pushhub_topic_")
    return f"`{name}`" in text or f"`{short}`" in text
