"""`POST /v1/projects/{project}/subscriptions/{subscription}:diagnose`: why messages are not delivered."""

from __future__ import annotations

from typing import Any

from django.utils import translation
from rest_framework.request import Request

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import format_diagnosis
from pushhub.common.errors import InvalidArgument
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.selectors import get_subscription


class SubscriptionDiagnose(ApiView):
    """Checks each step of a push. It opens connections to the endpoint, so it needs more than to view."""

    @serve(
        "pushhub.v1.Diagnostics.DiagnoseSubscription",
        "subscriptions_diagnose",
        takes={"application/json": {"type": "object", "properties": {"sendProbe": {"type": "boolean"}}}},
    )
    def post(self, request: Request, name: str) -> Any:
        subscription_row = get_subscription(name=name)
        body = request.data
        send_probe = body.get("sendProbe", False) if isinstance(body, dict) else None
        if not isinstance(send_probe, bool):
            raise InvalidArgument("Give true or false.", field="sendProbe")
        # The texts of the API do not depend on the language that a client accepts.
        with translation.override("en"):
            diagnosis = diagnose_subscription(subscription_row, caller=caller_of(request), send_probe=send_probe)
        return format_diagnosis(diagnosis)
