"""Cloud Monitoring's way to read metrics: which there are (`/v3/.../metricDescriptors`), and `/v3/.../timeSeries`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from deliveries.telemetry.kinds import KINDS, Kind
from deliveries.telemetry.series.filters import parse_filter
from deliveries.telemetry.series.series import MINUTE, Query, Series, find_series, format_series, within_reach
from pushhub.common.errors import InvalidArgument, NotFound, clipped
from pushhub.common.pagetokens import read_token, write_token
from pushhub.common.protojson import parse_duration, parse_timestamp
from pushhub.common.replica import read
from subscriptions.api.openapi import PAGING
from subscriptions.api.routes import serve
from subscriptions.paging import Page
from subscriptions.selectors import get_project

#: The most points of a page, as in Cloud Monitoring. A page has whole series, and at least one.
MAX_POINTS = 100_000
#: As in Cloud Monitoring.
LONGEST_PERIOD = timedelta(weeks=104)
SERVICE = "google.monitoring.v3.MetricService."
DESCRIPTORS = "v3/projects/{project}/metricDescriptors"


@serve("GET", DESCRIPTORS, SERVICE)
def list_metric_descriptors(project: str) -> Any:
    """Return all metrics. They are few, so there is one page."""
    project_id = get_project(project=project).project_id
    return {"metricDescriptors": [_descriptor(kind, project_id) for kind in KINDS.values()]}


@serve("GET", DESCRIPTORS + "/{metric:.+}", SERVICE)
def get_metric_descriptor(project: str, metric: str) -> Any:
    """Return a metric."""
    project_id = get_project(project=project).project_id
    if metric not in KINDS:
        raise NotFound(f"Could not find descriptor for metric '{clipped(metric)}'.")
    return _descriptor(KINDS[metric], project_id)


def _descriptor(kind: Kind, project_id: str) -> dict[str, Any]:
    """Return the JSON form of google.api.MetricDescriptor; labels are texts, which is the default type."""
    return {
        "name": f"projects/{project_id}/metricDescriptors/{kind.type}",
        "type": kind.type,
        "metricKind": kind.metric_kind,
        "valueType": kind.value_type,
        "unit": kind.unit,
        "description": kind.help,
        **({"labels": [{"key": label} for label in kind.labels]} if kind.labels else {}),
        "monitoredResourceTypes": [kind.resource_type],
    }


@serve(
    "GET",
    "v3/projects/{project}/timeSeries",
    SERVICE,
    parameters=[
        OpenApiParameter("filter", str, required=True, description='metric.type = "..." AND ...'),
        OpenApiParameter("interval.startTime", str, description="RFC 3339; a minute before the end, unless given"),
        OpenApiParameter("interval.endTime", str, required=True, description="RFC 3339"),
        OpenApiParameter("aggregation.alignmentPeriod", str, description="Whole minutes, such as 60s or 3600s"),
        OpenApiParameter("aggregation.perSeriesAligner", str, description="ALIGN_RATE, ALIGN_PERCENTILE_99, ..."),
        OpenApiParameter("view", str, enum=["FULL", "HEADERS"]),
        *PAGING,
    ],
)
def list_time_series(project: str, query: Mapping[str, str]) -> Any:
    """Return the series of a metric, for a time."""
    wanted = _query(get_project(project=project).project_id, query)
    is_full = query.get("view", "FULL") != "HEADERS"
    scope = f"timeSeries:{wanted.project}:{query.get('filter')}"
    asked = Page.read(query, default=MAX_POINTS, cap=MAX_POINTS)
    first = int(read_token(asked.token, scope)[0]) if asked.token else 0
    series = read(lambda: find_series(wanted))
    page = _page(series[first:], asked.size)
    body: dict[str, Any] = {"timeSeries": [format_series(row, wanted, with_points=is_full) for row in page]}
    if first + len(page) < len(series):
        body["nextPageToken"] = write_token([str(first + len(page))], scope)
    return body if page else {}


def _query(project: str, parameters: Mapping[str, str]) -> Query:
    if "filter" not in parameters:
        raise InvalidArgument('Give a filter, such as metric.type = "...".', field="filter")
    if parameters.get("aggregation.crossSeriesReducer", "REDUCE_NONE") != "REDUCE_NONE":
        raise InvalidArgument("Series are not reduced here.", field="aggregation.crossSeriesReducer")
    end = within_reach(parse_timestamp(parameters.get("interval.endTime"), field="interval.endTime"))
    start = end - MINUTE
    if parameters.get("interval.startTime"):
        start = within_reach(parse_timestamp(parameters["interval.startTime"], field="interval.startTime"))
    if start > end:
        raise InvalidArgument("The interval ends before it starts.", field="interval")
    return Query(
        project,
        parse_filter(parameters["filter"]),
        start,
        end,
        _period(parameters.get("aggregation.alignmentPeriod", "")),
        parameters.get("aggregation.perSeriesAligner", ""),
    )


def _period(text: str) -> timedelta:
    field = "aggregation.alignmentPeriod"
    period = timedelta(milliseconds=parse_duration(text, field=field)) if text else MINUTE
    if not MINUTE <= period <= LONGEST_PERIOD or period % MINUTE:
        raise InvalidArgument("The alignment period is a whole number of minutes, up to 104 weeks.", field=field)
    return period


def _page(series: list[Series], points: int) -> list[Series]:
    """Return the first series that have at most `points` points together, but at least one series."""
    count = 0
    for number, row in enumerate(series):
        count += len(row.cells)
        if count > points and number:
            return series[:number]
    return series
