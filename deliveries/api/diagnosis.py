"""`POST /v1/projects/{project}/subscriptions/{subscription}:diagnose`: why messages are not delivered."""

from __future__ import annotations

from django.utils import translation
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import format_diagnosis
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import subscription_name
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import ANY_OBJECT
from subscriptions.selectors import get_subscription


class SubscriptionDiagnose(ApiView):
    """Checks each step of a push. It opens connections to the endpoint, so it needs more than to view."""

    methods = {"POST": "pushhub.v1.Diagnostics.DiagnoseSubscription"}

    @extend_schema(
        operation_id="subscriptions_diagnose",
        tags=["subscriptions"],
        request={"application/json": {"type": "object", "properties": {"sendProbe": {"type": "boolean"}}}},
        responses=ANY_OBJECT,
    )
    def post(self, request: Request, project: str, subscription: str) -> Response:
        subscription_row = get_subscription(name=subscription_name(project, subscription))
        body = request.data
        send_probe = body.get("sendProbe", False) if isinstance(body, dict) else None
        if not isinstance(send_probe, bool):
            raise InvalidArgument("Give true or false.", field="sendProbe")
        # The texts of the API do not depend on the language that a client accepts.
        with translation.override("en"):
            diagnosis = diagnose_subscription(subscription_row, caller=caller_of(request), send_probe=send_probe)
        return Response(format_diagnosis(diagnosis))
