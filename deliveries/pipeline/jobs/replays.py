"""The specification of a replay, which the command and the console share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from deliveries.models import PublishJob
from deliveries.pipeline.jobs.filters import check_filter
from deliveries.pipeline.publishing.publishjobs import Target, begin_job
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from subscriptions.selectors import get_subscription, get_topic


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Which messages to publish again, and where: to a topic or to one subscription, exactly one of the two."""

    topic: str
    subscription: str
    since: datetime
    until: datetime
    filter: str

    @classmethod
    def of(cls, job: PublishJob) -> ReplaySpec:
        row = job.spec
        since, until = datetime.fromisoformat(row["from"]), datetime.fromisoformat(row["to"])
        return cls(row["topic"], row["subscription"], since, until, row["filter"])

    def check(self) -> None:
        """Raise InvalidArgument for a wrong time or filter."""
        if self.since >= self.until:
            raise InvalidArgument("The time to replay ends before it begins.", field="to")
        check_filter(self.filter)

    def row(self) -> dict[str, str]:
        since, until = self.since.astimezone(UTC).isoformat(), self.until.astimezone(UTC).isoformat()
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "from": since,
            "to": until,
            "filter": self.filter,
        }

    def target(self, *, rate: int = 0) -> Target:
        """Return who gets the messages. Raises NotFound or FailedPrecondition if there is no such topic any more."""
        if self.topic:
            return Target(get_topic(name=self.topic, field="topic"), rate=rate)
        subscription = get_subscription(name=self.subscription)
        if subscription.topic is None or subscription.detached:
            raise FailedPrecondition(f"{subscription.name} has no topic any more.")
        return Target(subscription.topic, subscription.pk, rate)


def begin_replay(spec: ReplaySpec, *, job_id: str = "") -> PublishJob:
    """Return the job of a replay, new or as it was left. Refuses what cannot be replayed before it creates a job."""
    spec.check()
    spec.target()
    row = spec.row()
    short = (spec.topic or spec.subscription).rpartition("/")[2][:60]
    digest = sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12]
    return begin_job(job_id=job_id or f"replay {short} {digest}", kind="replay", spec=row)
