"""Celery tasks: the delivery, and the timed tasks of the maintenance worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery import shared_task
from celery.app.task import Task
from django.conf import settings

from deliveries import activity
from deliveries.backlog import reconcile, regions
from deliveries.backlog.default import default_backlog
from deliveries.deadletters import jobs, listing
from deliveries.pipeline.archiving.schedule import schedule as archive_schedule
from deliveries.retention import sweep
from deliveries.rules.taskmessage import TASK_NAME, DeliverTask, task_id_of
from deliveries.store import fanout
from deliveries.telemetry.counting import embedded
from deliveries.telemetry.journal import upkeep
from deliveries.telemetry.series import counterseries, expiry, gauges, regiongauges
from subscriptions.services.snapshots import snapshots_sweep


class DeliverStrategyTask(Task[Any, Any]):
    """A task whose messages a push worker hands to its engine."""

    Strategy = "deliveries.push.strategy:deliver_strategy"


@shared_task(name=TASK_NAME, base=DeliverStrategyTask, bind=True, ignore_result=True, acks_late=True)
def deliver(self: Task[Any, Any], subscription_id: int, region: str, attempt: int, message: dict[str, Any]) -> str:
    """Push one message. A push worker never comes here (strategy.py); a stock worker does, one task at a time."""
    from deliveries.push.single import deliver_one

    task_id = task_id_of({"id": str(self.request.id), "lane": self.request.get("lane", "")})
    return deliver_one(DeliverTask(subscription_id, region, attempt, message), task_id=task_id)


@shared_task(name="deliveries.backlog_audit")
def backlog_audit(shard: int | None = None) -> dict[str, int]:
    known = default_backlog().summaries(shard=shard)
    return {
        "tokens": reconcile.audit_tokens(known, shard=shard),
        "orphans": reconcile.audit(known, shard=shard),
        "purged": reconcile.purge_deleted(shard=shard),
    }


@shared_task(name="deliveries.regions_audit")
def regions_audit() -> int:
    return len(regions.regions_audit())


@shared_task(name="deliveries.resources_sweep")
def resources_sweep() -> dict[str, int]:
    """Snapshots whose time is over, and subscriptions that nobody uses any more."""
    return {"snapshots": snapshots_sweep(), "subscriptions": activity.expired_subscriptions_delete()}


@shared_task(name="deliveries.expired_sweep")
def expired_sweep(shard: int | None = None) -> int:
    return sweep.expired_sweep(shard=shard)


@shared_task(name="deliveries.messages_sweep")
def messages_sweep() -> dict[str, int]:
    return {
        "settled": sweep.settled_sweep(),
        "abandoned": fanout.abandoned_remove(),
    }


#: Where this process' next sweep of dead letters continues.
_letters_swept_to = 0


@shared_task(name="deliveries.dead_letters_sweep")
def dead_letters_sweep() -> None:
    """Forget dead letters that were acknowledged."""
    global _letters_swept_to
    _letters_swept_to = listing.settled_sweep(_letters_swept_to)


@shared_task(name="deliveries.dead_letters_advance")
def dead_letters_advance(shard: int | None = None) -> int:
    """Move dead letters for the orders that are under way."""
    return jobs.jobs_advance(shard=shard)


@shared_task(name="deliveries.journals_seal")
def journals_seal() -> int:
    return upkeep.journals_seal()


@shared_task(name="deliveries.segments_ship")
def segments_ship() -> int:
    return upkeep.segments_ship()


@shared_task(name="deliveries.segments_count")
def segments_count() -> int:
    return embedded.segments_count()


@shared_task(name="deliveries.archive_start")
def archive_start() -> bool:
    return archive_schedule.start()


@shared_task(name="deliveries.gauges_take")
def gauges_take() -> int:
    return gauges.gauges_take() + regiongauges.region_gauges_take()


@shared_task(name="deliveries.counters_sample")
def counters_sample() -> int:
    return counterseries.counters_sample()


@shared_task(name="deliveries.metrics_sweep")
def metrics_sweep() -> dict[str, int]:
    gone = expiry.segments_expire(Path(settings.JOURNAL)) if settings.JOURNAL else 0
    return {"rows": expiry.metrics_expire(), "segments": gone}
