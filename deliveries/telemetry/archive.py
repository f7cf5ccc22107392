"""How the archive stands: what it has, how far it goes back, and how long messages have waited for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, Max, Min, Sum

from deliveries.models import ArchivedMessage, ArchiveFile, Message
from deliveries.rules.ids import publish_time
from deliveries.telemetry.runs import Kind, last_runs
from pushhub.common.clock import Clock, utcnow


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """How the archive stands. An archive without files has no oldest message."""

    files: int
    messages: int
    bytes: int
    oldest_seconds: float | None
    #: For how long the oldest message that isn't in the archive has waited; 0 if none waits. None without archiving.
    lag_seconds: float | None

    def figures(self) -> dict[str, float]:
        """Return what is known. A deployment without an archive has no figures."""
        if not self.files and self.lag_seconds is None:
            return {}
        known = {"files": self.files, "messages": self.messages, "bytes": self.bytes}
        ages = {"oldest_seconds": self.oldest_seconds, "lag_seconds": self.lag_seconds}
        return known | {name: age for name, age in ages.items() if age is not None}


def archive_state(*, clock: Clock = utcnow) -> ArchiveState:
    """Return how the archive stands, by its manifest."""
    now = clock()
    sums = ArchiveFile.objects.order_by().aggregate(
        files=Count("id"), messages=Sum("rows"), size=Sum("bytes"), first_id=Min("first_id")
    )
    oldest = None if sums["first_id"] is None else _seconds(now, publish_time(sums["first_id"]))
    lag = None
    if settings.ARCHIVING:
        waiting = _waiting_since()
        lag = 0.0 if waiting is None else _seconds(now, waiting)
    return ArchiveState(sums["files"], sums["messages"] or 0, sums["size"] or 0, oldest, lag)


def _seconds(now: datetime, since: datetime) -> float:
    return max((now - since).total_seconds(), 0.0)


def _waiting_since() -> datetime | None:
    """Return when the oldest message was published that isn't in the archive.

    To look at each message would take long with millions of them. A run looks when it begins, so until it has ended
    well, the message that it found is the oldest. After that, messages wait only if they are younger than all that
    runs have taken; one that was committed later than a younger one is seen by the next run.
    """
    run = last_runs().get(Kind.ARCHIVE)
    if run is not None and run.lag_seconds is not None and (run.finished_at is None or run.failure):
        return run.started_at - timedelta(seconds=run.lag_seconds)
    taken = ArchivedMessage.objects.aggregate(last=Max("message_id"))["last"] or 0
    message_id = Message.objects.filter(pk__gt=taken).order_by("pk").values_list("pk", flat=True).first()
    return None if message_id is None else publish_time(message_id)
