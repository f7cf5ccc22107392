"""The button "Diagnose" of a subscription's page: checks each step of a push and shows what it found."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy

from deliveries.diagnosis.service import diagnose_subscription
from deliveries.diagnosis.steps import Step, StepName, StepStatus, summary_without_fault
from subscriptions.console.base import caller_of
from subscriptions.models import Subscription

#: It opens connections to the endpoint, so it needs more than to view the subscription.
DIAGNOSE = "pushhub.v1.Diagnostics.DiagnoseSubscription"
NAMES = {
    StepName.SUBSCRIPTION: gettext_lazy("Subscription"),
    StepName.URL: gettext_lazy("URL of the endpoint"),
    StepName.TOKEN: gettext_lazy("Token"),
    StepName.DATABASE: gettext_lazy("Database"),
    StepName.WORKER: gettext_lazy("Push workers"),
    StepName.MAINTENANCE: gettext_lazy("Maintenance workers"),
    StepName.REGION: gettext_lazy("Region"),
    StepName.FILTER: gettext_lazy("Filter"),
    StepName.TRANSFORMS: gettext_lazy("Message transforms"),
    StepName.ORDERING: gettext_lazy("Ordering keys"),
    StepName.DEAD_LETTERS: gettext_lazy("Dead letters"),
    StepName.NAME: gettext_lazy("Host name"),
    StepName.GUARD: gettext_lazy("Address guard"),
    StepName.CONNECTION: gettext_lazy("Connection"),
    StepName.CERTIFICATE: gettext_lazy("Certificate"),
    StepName.ANSWER: gettext_lazy("Answer of the endpoint"),
    StepName.FLOW: gettext_lazy("Flow of messages"),
}
STATUSES = {
    StepStatus.OK: ("good", gettext_lazy("works")),
    StepStatus.WARNING: ("warn", gettext_lazy("warning")),
    StepStatus.FAILED: ("bad", gettext_lazy("fails")),
    StepStatus.SKIPPED: ("", gettext_lazy("not checked")),
}


def diagnosis_context(request: HttpRequest, row: Subscription) -> dict[str, Any]:
    """Diagnose, with a probe if the form asks for one, and return what the page shows."""
    send_probe = request.POST.get("probe") == "yes"
    diagnosis = diagnose_subscription(row, caller=caller_of(request), send_probe=send_probe)
    culprit = diagnosis.culprit
    return {
        "steps": [_shown(step) for step in diagnosis.steps],
        "culprit": _shown(culprit) if culprit is not None else None,
        "without_fault": summary_without_fault([str(NAMES[name]) for name in diagnosis.untried]),
        "may_probe": bool(row.push_endpoint) and not row.paused and not send_probe,
    }


def _shown(step: Step) -> dict[str, Any]:
    level, status = STATUSES[step.status]
    return {
        "name": NAMES[step.name],
        "level": level,
        "status": status,
        "message": step.message,
        "advice": step.advice,
        "message_id": step.message_id,
    }
