"""The alert rules, the tables and the dashboard of the docs name the metrics that `/metrics` exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from deliveries.telemetry.export.prometheus import metrics_text
from deliveries.telemetry.kinds import Kind
from tests.docscripts import script_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

FOLDER = Path(__file__).parents[3] / "docs" / "monitoring"
METRIC = re.compile(r"\bpushhub_\w+")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of("metrics")


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
    assert set(METRIC.findall(" ".join(dashboard_expressions()))) == exported


def test_no_line_of_the_dashboard_adds_up_resources_of_two_projects() -> None:
    for expression in dashboard_expressions():
        for labels in re.findall(r" by \(([^)]*)\)", expression):
            named = set(labels.split(", "))
            assert not {"subscription", "topic", "snapshot"} & named or "project" in named, expression


def test_tables_and_dashboard_are_what_the_script_writes(script: ModuleType) -> None:
    assert {path: path.read_text(encoding="utf-8") for path in script.files()} == script.files()


def test_a_new_metric_is_in_the_tables_and_has_a_panel(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind("topic/oldest_thing_age", "Age of the oldest thing.", "s", region_gauge="thing_seconds")
    assert kind.help[:-1] not in " ".join(script.files().values())
    monkeypatch.setattr(script.kinds, "KINDS", {**script.kinds.KINDS, kind.type: kind})
    monkeypatch.setattr(script.kinds, "EXPORTED", (*script.kinds.EXPORTED, kind))
    files = script.files()
    assert (
        "| `topic/oldest_thing_age` | Age of the oldest thing | GAUGE INT64, s | |"
        in files[FOLDER.parent / "metrics.md"]
    )
    row = "| `pushhub_topic_oldest_thing_age_seconds` | Age of the oldest thing | gauge | `topic`, `region` |"
    assert row in files[FOLDER / "README.md"]
    panel = json.loads(files[FOLDER / "dashboard.json"])["panels"][-1]
    assert (panel["title"], panel["fieldConfig"]["defaults"]["unit"]) == ("Age of the oldest thing", "s")
    expected = 'max by (project, topic) (pushhub_topic_oldest_thing_age_seconds{project=~"$project"})'
    assert [target["expr"] for target in panel["targets"]] == [expected]
