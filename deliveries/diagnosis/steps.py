"""The result of a diagnosis: steps in the order of a push, each with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _

from deliveries.inspection.texts import result_advice
from subscriptions.resources.subscriptions import pause_resource
from subscriptions.selectors import Pause


class StepName(TextChoices):
    """What is checked, in this order."""

    SUBSCRIPTION = "subscription", _("Subscription")
    URL = "url", _("URL of the endpoint")
    TOKEN = "token", _("Token")
    DATABASE = "database", _("Database")
    WORKER = "worker", _("Push workers")
    MAINTENANCE = "maintenance", _("Maintenance workers")
    REGION = "region", _("Region")
    FILTER = "filter", _("Filter")
    TRANSFORMS = "transforms", _("Message transforms")
    ORDERING = "ordering", _("Ordering keys")
    DEAD_LETTERS = "dead letters", _("Dead letters")
    NAME = "name", _("Host name")
    GUARD = "guard", _("Address guard")
    CONNECTION = "connection", _("Connection")
    CERTIFICATE = "certificate", _("Certificate")
    ANSWER = "answer", _("Answer of the endpoint")
    FLOW = "flow", _("Flow of messages")


class StepStatus(TextChoices):
    """`warning` explains why messages may wait although each push would work; `skipped` was not reached."""

    OK = "ok", _("works")
    WARNING = "warning", _("warning")
    FAILED = "failed", _("fails")
    SKIPPED = "skipped", _("not checked")


#: What these warn of holds back nothing that waits now.
ASIDE = frozenset({StepName.SUBSCRIPTION, StepName.MAINTENANCE})


@dataclass(frozen=True, slots=True)
class Step:
    """One check. `advice` says what to do about a failure or a warning."""

    name: StepName
    status: StepStatus
    message: str
    advice: str = ""
    #: The message that a finding is about.
    message_id: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All steps of one subscription, those that were not reached included."""

    subscription: str
    steps: Sequence[Step]
    paused: Pause | None = None

    @property
    def culprit(self) -> Step | None:
        """The first step that failed, or else the first with a warning, those of ASIDE last."""
        wrong = [step for step in self.steps if step.status in (StepStatus.FAILED, StepStatus.WARNING)]
        return min(wrong, key=lambda step: (step.status != StepStatus.FAILED, step.name in ASIDE), default=None)

    @property
    def untried(self) -> Sequence[StepName]:
        """The steps that were not tried, so that nobody knows whether they work."""
        return [step.name for step in self.steps if step.status == StepStatus.SKIPPED]

    @property
    def summary(self) -> str:
        """One line: which step fails and what to do."""
        culprit = self.culprit
        if culprit is None:
            return summary_without_fault(self.untried)
        return f"{culprit.name}: {culprit.message} {culprit.advice}".strip()


def summary_without_fault(untried: Sequence[str]) -> str:
    """Return the summary where no step fails. `untried` has the names of the steps that were not tried."""
    if not untried:
        return str(_("Nothing is wrong: each step was tried just now, and works."))
    return _("No fault was found, but not every step was tried: %(steps)s.") % {"steps": ", ".join(untried)}


def ok(name: StepName, message: str) -> Step:
    return Step(name, StepStatus.OK, message)


def failed(name: StepName, message: str, advice: str = "", *, result: str = "") -> Step:
    """Return a step that failed. `result` is how pushes end therefore, which has advice of its own."""
    if result:
        message = f"{message} {_('Pushes end with %(result)s.') % {'result': result}}"
    return Step(name, StepStatus.FAILED, message, advice or result_advice(result))


def warning(name: StepName, message: str, advice: str) -> Step:
    return Step(name, StepStatus.WARNING, message, advice)


def skipped(name: StepName, message: str) -> Step:
    return Step(name, StepStatus.SKIPPED, message)


def format_diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the JSON form."""
    return {
        "subscription": diagnosis.subscription,
        "healthy": diagnosis.culprit is None,
        "summary": diagnosis.summary,
        **pause_resource(diagnosis.paused),
        "steps": [
            {
                "name": step.name,
                "status": step.status,
                "message": step.message,
                **({"advice": step.advice} if step.advice else {}),
                **({"messageId": str(step.message_id)} if step.message_id is not None else {}),
            }
            for step in diagnosis.steps
        ],
    }
