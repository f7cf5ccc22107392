"""`GET /v3/projects/{project}/metricDescriptors`: which metrics there are, in Cloud Monitoring's form."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.telemetry.kinds import KINDS, Kind
from pushhub.common.errors import NotFound, clipped
from subscriptions.api.base import ApiView
from subscriptions.api.openapi import ANY_OBJECT
from subscriptions.selectors import get_project

SERVICE = "google.monitoring.v3.MetricService."


class MetricDescriptorList(ApiView):
    """All metrics. They are few, so there is one page."""

    methods = {"GET": SERVICE + "ListMetricDescriptors"}

    @extend_schema(operation_id="metricDescriptors_list", tags=["metrics"], responses=ANY_OBJECT)
    def get(self, request: Request, project: str) -> Response:
        project_id = get_project(project=project).project_id
        return Response({"metricDescriptors": [_descriptor(kind, project_id) for kind in KINDS.values()]})


class MetricDescriptorDetail(ApiView):
    """One metric."""

    methods = {"GET": SERVICE + "GetMetricDescriptor"}

    @extend_schema(operation_id="metricDescriptors_get", tags=["metrics"], responses=ANY_OBJECT)
    def get(self, request: Request, project: str, metric: str) -> Response:
        project_id = get_project(project=project).project_id
        if metric not in KINDS:
            raise NotFound(f"Could not find descriptor for metric '{clipped(metric)}'.")
        return Response(_descriptor(KINDS[metric], project_id))


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
