"""What a replay is asked for, by the command and by the console alike."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

from deliveries.models import PublishJob
from deliveries.pipeline.jobs.filters import filter_check
from deliveries.pipeline.jobs.publishjobs import Target, job_begin
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from subscriptions.selectors import subscription_get, topic_get


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Messages of a time, for a topic or for one subscription of it; exactly one of the two is named."""

    topic: str
    subscription: str
    since: datetime
    until: datetime
    filter: str

    @classmethod
    def of(cls, job: PublishJob) -> ReplaySpec:
        given = job.spec
        since, until = datetime.fromisoformat(given["from"]), datetime.fromisoformat(given["to"])
        return cls(given["topic"], given["subscription"], since, until, given["filter"])

    def check(self) -> None:
        """InvalidArgument names what is wrong."""
        if self.since >= self.until:
            raise InvalidArgument("The time to replay ends before it begins.", field="to")
        filter_check(self.filter)

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
        """Who gets the messages; NotFound or FailedPrecondition where there is nobody."""
        if self.topic:
            return Target(topic_get(name=self.topic, field="topic"), rate=rate)
        found = subscription_get(name=self.subscription)
        if found.topic is None or found.detached:
            raise FailedPrecondition(f"{found.name} has no topic any more.")
        return Target(found.topic, found.pk, rate)


def replay_begin(spec: ReplaySpec, *, job_id: str = "") -> PublishJob:
    """The job of a replay, made or found where it was left; what cannot be replayed is refused before there is one."""
    spec.check()
    spec.target()
    row = spec.row()
    short = (spec.topic or spec.subscription).rpartition("/")[2][:60]
    digest = sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12]
    return job_begin(job_id=job_id or f"replay {short} {digest}", kind="replay", spec=row)
