"""Writes the tables of metrics in docs/metrics.md and docs/monitoring/README.md, and docs/monitoring/dashboard.json.

    python docs/metrics.py          # writes the files
    python docs/metrics.py --check  # says by its exit code whether the files are up to date

All of it comes from the rows of deliveries/telemetry/kinds.py. PANELS says which metrics share a panel of the
dashboard; any other has one of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from deliveries.telemetry import kinds  # noqa: E402
from deliveries.telemetry.kinds import Kind  # noqa: E402

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: The labels that choose the series of a resource.
CHOSEN = {"subscription": ("project", "subscription"), "topic": ("project",), "snapshot": ("project",)}
#: The labels that name a resource: projects may have subscriptions of the same id.
NAMES = ("project", *CHOSEN)
OF_SUBSCRIPTION = ("project", "subscription")


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard. `targets` has the fields of its metrics, each with its legend beside the labels."""

    title: str
    targets: Mapping[str, str]
    #: The labels that tell its lines apart; by default the resource and the metric's own labels.
    by: tuple[str, ...] | None = None
    #: For histograms.
    quantiles: Mapping[float, str] = field(default_factory=lambda: {0.95: "p95"})
    unit: str = ""
    #: Queries that do not follow from a metric, with their legends.
    others: Mapping[str, str] = field(default_factory=dict)


#: The top row.
STATS = (
    Panel("Components", {"component_up": ""}),
    Panel("Push workers", {"push_workers": "workers"}),
    Panel("Push workers' oldest job", {"push_oldest_job_seconds": "age"}),
    Panel("Maintenance worker silent for", {"maintenance_last_sign_of_life_seconds": "silent"}),
    Panel("Pipeline lag", {"pipeline_lag_seconds": "lag", "journals_stopped": "stopped journals"}),
)
PANELS = (
    Panel("Pushes by response class", {"subscription_push_request_count": ""}, by=("response_class",)),
    Panel(
        "Push latency",
        {"subscription_push_request_latency_seconds": ""},
        by=(),
        quantiles={0.5: "p50", 0.95: "p95", 0.99: "p99"},
    ),
    Panel(
        "Sent, acked and nacked messages",
        {
            "subscription_sent_message_count": "sent",
            "subscription_ack_message_count": "ack",
            "subscription_nack_message_count": "nack",
        },
        by=("delivery_type",),
    ),
    Panel(
        "Dead letters and expired ack deadlines",
        {
            "subscription_dead_letter_message_count": "dead letters",
            "subscription_expired_ack_deadlines_count": "expired",
        },
        by=OF_SUBSCRIPTION,
    ),
    Panel(
        "Latency of pulled messages",
        {"subscription_ack_latency_seconds": "ack", "subscription_mod_ack_latency_seconds": "modack"},
        by=OF_SUBSCRIPTION,
    ),
    Panel(
        "Pull, acknowledge, modify and seek requests",
        {
            "subscription_pull_request_count": "pull",
            "subscription_pull_ack_request_count": "acknowledge",
            "subscription_mod_ack_deadline_request_count": "modify",
            "subscription_seek_request_count": "seek",
        },
    ),
    Panel(
        "Streaming pull responses and requests",
        {
            "subscription_streaming_pull_response_count": "responses",
            "subscription_streaming_pull_ack_request_count": "ack requests",
            "subscription_streaming_pull_mod_ack_deadline_request_count": "modack requests",
        },
    ),
    Panel(
        "Push window and outstanding messages",
        {"subscription_push_window": "window", "subscription_num_outstanding_messages": "outstanding"},
    ),
    Panel(
        "Oldest retained messages",
        {
            "subscription_oldest_retained_acked_message_age_seconds": "",
            "topic_oldest_retained_message_age_seconds": "",
            "snapshot_oldest_message_age_seconds": "",
        },
    ),
    Panel(
        "Messages retained in topics and snapshots", {"topic_num_retained_messages": "", "snapshot_num_messages": ""}
    ),
    Panel("Bytes retained in topics and snapshots", {"topic_retained_bytes": "", "snapshot_backlog_bytes": ""}),
    Panel(
        "Messages in Redis, and the budget for them",
        {"redis_backlog_bytes": "messages", "redis_budget_bytes": "budget"},
    ),
)


def panels() -> list[Panel]:
    """Return the panels below the top row. Each has the place of its first metric among the rows of kinds.py."""
    panel_of = {name: panel for panel in (*STATS, *PANELS) for name in panel.targets}
    drawn: list[Panel] = []
    for kind in kinds.EXPORTED:
        panel = panel_of.get(kind.field) or Panel(kind.help.rstrip("."), {kind.field: ""})
        if panel not in (*STATS, *drawn):
            drawn.append(panel)
        if kind is kinds.PUSH_REQUESTS:
            acks, pushes = _rate(kind, OF_SUBSCRIPTION, match='outcome="ack"'), _rate(kind, OF_SUBSCRIPTION)
            # An endpoint that has never acknowledged anything has no counter of acks.
            share = {f"({acks} or 0 * {pushes}) / {pushes}": "{{project}}/{{subscription}}"}
            drawn.append(Panel("Share of acks", {}, unit="percentunit", others=share))
    return drawn


def by_field() -> dict[str, Kind]:
    return {kind.field: kind for kind in kinds.EXPORTED}


def expressions(panel: Panel) -> Iterator[tuple[str, str]]:
    """Yield each query of a panel, with its legend."""
    for name, word in panel.targets.items():
        kind = by_field()[name]
        by = panel.by if panel.by is not None else (*_resource(kind), *_exported_labels(kind))
        resource = "/".join(_marks(by, NAMES))
        legend = " ".join(filter(None, [resource, word, *_marks(by, _exported_labels(kind))]))
        if kind.exported_type == "histogram":
            for quantile, text in panel.quantiles.items():
                rate = _rate(kind, ("le", *by), suffix="_bucket")
                yield f"histogram_quantile({quantile}, {rate})", f"{legend} {text}".strip()
            mean = " / ".join(_rate(kind, by, suffix=suffix) for suffix in ("_sum", "_count"))
            yield mean, f"{legend} mean".strip()
        elif kind.exported_type == "counter":
            yield _rate(kind, by), legend
        elif kind.region_gauge and kind.unit == "s":
            yield f"max by ({', '.join(_resource(kind))}) ({_selected(kind)})", resource
        elif kind.region_gauge:
            yield f"sum by ({', '.join(by)}) ({_selected(kind)})", legend
        else:
            yield _selected(kind), legend
    yield from panel.others.items()


def _marks(by: Sequence[str], labels: Sequence[str]) -> list[str]:
    return [f"{{{{{label}}}}}" for label in by if label in labels]


def _exported_labels(kind: Kind) -> tuple[str, ...]:
    """Return Prometheus' labels, beside `project` and the resource."""
    if kind.counter is not None:
        return kind.counter
    if kind.gauge or kind.region_gauge:
        return ("region",) if kind.region_gauge else ()
    return kind.labels


def _resource(kind: Kind) -> tuple[str, ...]:
    return ("project", kind.resource) if kind.resource in CHOSEN else ()


def _selected(kind: Kind, *, suffix: str = "", match: str = "") -> str:
    choices = [f'{label}=~"${label}"' for label in CHOSEN.get(kind.resource, ())] + ([match] if match else [])
    return f"{kind.exported}{suffix}" + (f"{{{','.join(choices)}}}" if choices else "")


def _rate(kind: Kind, by: Sequence[str], *, suffix: str = "", match: str = "") -> str:
    rate = f"rate({_selected(kind, suffix=suffix, match=match)}[$__rate_interval])"
    return f"sum by ({', '.join(by)}) ({rate})" if by else f"sum ({rate})"


def _unit(panel: Panel) -> str:
    """Return Grafana's unit of a panel, which is that of its first metric."""
    if panel.unit:
        return panel.unit
    kind = by_field()[next(iter(panel.targets))]
    if kind.field.endswith("_seconds"):
        return "s"
    is_rate = kind.exported_type == "counter"
    if kind.unit == "By" or kind.field.endswith("_bytes"):
        return "Bps" if is_rate else "bytes"
    return "ops" if is_rate else "short"


def dashboard() -> str:
    """Return all of dashboard.json."""
    drawn = [
        *(
            _drawn(panel, number + 1, "stat", x=5 * number, y=0, w=min(5, 24 - 5 * number), h=4)
            for number, panel in enumerate(STATS)
        ),
        *(
            _drawn(panel, len(STATS) + number + 1, "timeseries", x=number % 2 * 12, y=4 + number // 2 * 8, w=12, h=8)
            for number, panel in enumerate(panels())
        ),
    ]
    undelivered = "pushhub_subscription_num_undelivered_messages"
    # The topic of a subscription may be in another project.
    projects = f'label_values({{__name__=~"{undelivered}|pushhub_topic_send_message_operation_count"}}, project)'
    subscriptions = f'label_values({undelivered}{{project=~"$project"}}, subscription)'
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _variable("project", "Project", projects),
        _variable("subscription", "Subscription", subscriptions),
    ]
    document = {
        "title": "PushHub",
        "uid": "pushhub",
        "tags": ["pushhub"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": drawn,
    }
    return json.dumps(document, indent=1) + "\n"


def _drawn(panel: Panel, number: int, type_: str, **place: int) -> dict[str, Any]:
    queries = enumerate(expressions(panel))
    return {
        "id": number,
        "title": panel.title,
        "type": type_,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _unit(panel)}, "overrides": []},
        "options": {},
        "targets": [
            {"expr": query, "legendFormat": legend, "datasource": SOURCE, "refId": chr(ord("A") + place)}
            for place, (query, legend) in queries
        ],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def time_series() -> str:
    """Return the table of the metrics of Cloud Monitoring's API."""
    rows = [
        (
            f"`{kind.type.removeprefix(kinds.PREFIX)}`",
            kind.help.rstrip("."),
            f"{kind.metric_kind} {kind.value_type}" + (f", {kind.unit}" if kind.unit != "1" else ""),
            ", ".join(f"`{label}`" for label in kind.labels),
        )
        for kind in kinds.KINDS.values()
    ]
    return _table("type", "what it is", "kind", "labels", rows=rows)


def exported() -> str:
    """Return the table of the metrics of `/metrics`."""
    rows = [
        (
            f"`{kind.exported}`",
            kind.help.rstrip("."),
            kind.exported_type,
            ", ".join(f"`{label}`" for label in (*_resource(kind)[1:], *_exported_labels(kind))),
        )
        for kind in kinds.EXPORTED
    ]
    return _table("metric", "what it is", "type", "labels beside `project`", rows=rows)


def _table(*head: str, rows: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n".replace("  |", " |") for row in (head, ("---",) * len(head), *rows))


def _with_table(page: Path, table: str) -> str:
    """Return the page with the table in place of the one with the same head."""
    head = table.partition("\n")[0]
    pattern = rf"^{re.escape(head)}\n(?:\|.*\n)*"
    return re.sub(pattern, lambda _: table, page.read_text(encoding="utf-8"), count=1, flags=re.M)


def files() -> dict[Path, str]:
    """Return what the files should be."""
    metrics, monitoring = ROOT / "docs" / "metrics.md", ROOT / "docs" / "monitoring"
    return {
        metrics: _with_table(metrics, time_series()),
        monitoring / "README.md": _with_table(monitoring / "README.md", exported()),
        monitoring / "dashboard.json": dashboard(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    stale = {path: text for path, text in files().items() if path.read_text(encoding="utf-8") != text}
    if parser.parse_args().check:
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
