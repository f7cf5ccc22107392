"""`GET /v3/projects/{project}/metricDescriptors`: which metrics there are, in Cloud Monitoring's form."""

from __future__ import annotations

from typing import Any

from deliveries.telemetry.kinds import KINDS, Kind
from pushhub.common.errors import NotFound, clipped
from subscriptions.api.routes import serve
from subscriptions.selectors import get_project

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
