"""`POST /v1/projects/{project}/subscriptions/{subscription}:diagnose`: why messages are not delivered."""

from __future__ import annotations

from typing import Any

from django.utils import translation

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import format_diagnosis
from pushhub.common.errors import InvalidArgument
from pushhub.common.principals import Principal
from pushhub.common.protojson import known_fields
from subscriptions.api.routes import SUBSCRIPTION, serve
from subscriptions.selectors import get_subscription


@serve(
    "POST",
    SUBSCRIPTION + ":diagnose",
    "pushhub.v1.Diagnostics.DiagnoseSubscription",
    takes={"application/json": {"type": "object", "properties": {"sendProbe": {"type": "boolean"}}}},
)
def diagnose(name: str, body: object, caller: Principal) -> Any:
    """Check each step of a push. It opens connections to the endpoint, so it needs more than to view."""
    subscription_row = get_subscription(name=name)
    send_probe = known_fields(body, ["sendProbe"]).get("sendProbe", False) if isinstance(body, dict) else None
    if not isinstance(send_probe, bool):
        raise InvalidArgument("Give true or false.", field="sendProbe")
    # The texts of the API do not depend on the language that a client accepts.
    with translation.override("en"):
        return format_diagnosis(diagnose_subscription(subscription_row, caller=caller, send_probe=send_probe))
