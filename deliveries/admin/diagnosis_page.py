"""The button "Diagnose" of a subscription's page: checks each step of a push and shows what it found."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import Step, StepStatus, summary_without_fault
from subscriptions.console.base import caller_of
from subscriptions.models import Subscription

#: It opens connections to the endpoint, so it needs more than to view the subscription.
DIAGNOSE = "pushhub.v1.Diagnostics.DiagnoseSubscription"
LEVELS = {StepStatus.OK: "good", StepStatus.WARNING: "warn", StepStatus.FAILED: "bad", StepStatus.SKIPPED: ""}


def diagnosis_context(request: HttpRequest, row: Subscription) -> dict[str, Any]:
    """Diagnose, with a probe if the form asks for one, and return what the page shows."""
    send_probe = request.POST.get("probe") == "yes"
    diagnosis = diagnose_subscription(row, caller=caller_of(request), send_probe=send_probe)
    culprit = diagnosis.culprit
    return {
        "steps": [_shown(step) for step in diagnosis.steps],
        "culprit": _shown(culprit) if culprit is not None else None,
        "without_fault": summary_without_fault([str(name.label) for name in diagnosis.untried]),
        "may_probe": bool(row.push_endpoint) and not row.paused and not send_probe,
    }


def _shown(step: Step) -> dict[str, Any]:
    return {
        "name": step.name.label,
        "level": LEVELS[step.status],
        "status": step.status.label,
        "message": step.message,
        "advice": step.advice,
        "message_id": step.message_id,
    }
