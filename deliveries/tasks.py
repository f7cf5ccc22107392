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
from deliveries.retention import snapshots, sweep
from deliveries.rules.outcome import Nack
from deliveries.rules.taskmessage import TASK_NAME, DeliverTask, generation_of, task_id_of
from deliveries.store import fanout, lanerows, lostoffers
from deliveries.telemetry.counting import counterseries, embedded
from deliveries.telemetry.journal import upkeep
from deliveries.telemetry.series import expiry, gauges, regiongauges
from subscriptions.services.snapshots import sweep_snapshots


class DeliverStrategyTask(Task[Any, Any]):
    """A task whose messages a push worker hands to its engine."""

    Strategy = "deliveries.push.strategy:deliver_strategy"
    Request = "deliveries.push.strategy:PushRequest"


@shared_task(name=TASK_NAME, base=DeliverStrategyTask, bind=True, ignore_result=True, acks_late=True, throws=(Nack,))
def deliver(self: Task[Any, Any], subscription_id: int, region: str, attempt: int, message: dict[str, Any]) -> str:
    """Push one message. A push worker never comes here (strategy.py); a stock worker does, one task at a time."""
    from deliveries.push import single, strategy, waker

    task_id = task_id_of({"id": str(self.request.id), "lane": self.request.get("lane", "")})
    task = DeliverTask(subscription_id, region, attempt, message)
    generation = generation_of(task_id)  # "" if somebody has sent the task by hand
    if generation and waker.here is not None and not waker.here.may_begin(task, generation=generation):
        return "not this worker's any more"
    return strategy.end_task(single.deliver_one(task, task_id=task_id))


@shared_task(name="deliveries.backlog_audit")
def audit_backlog(shard: int | None = None) -> dict[str, int]:
    known = default_backlog().summaries(shard=shard)
    return {
        "tokens": reconcile.audit_tokens(known, shard=shard),
        "orphans": reconcile.audit(known, shard=shard),
        "purged": reconcile.purge_gone(shard=shard),
    }


@shared_task(name="deliveries.regions_audit")
def audit_regions() -> int:
    return len(regions.audit_regions())


@shared_task(name="deliveries.resources_sweep")
def sweep_resources() -> dict[str, int]:
    """Snapshots whose time is over, their rows, and subscriptions that nobody uses any more."""
    return {
        "snapshots": sweep_snapshots(),
        "snapshot_rows": snapshots.sweep_rows(),
        "subscriptions": activity.delete_expired_subscriptions(),
    }


@shared_task(name="deliveries.expired_sweep")
def sweep_expired(shard: int | None = None) -> int:
    return sweep.sweep_expired(shard=shard)


@shared_task(name="deliveries.messages_sweep")
def sweep_messages() -> dict[str, int]:
    return {
        "settled": sweep.sweep_settled(),
        "abandoned": fanout.remove_abandoned(),
        "lost": lostoffers.sweep_settled(),
    }


#: Where this process' next sweep of dead letters continues.
_letters_swept_to = 0


@shared_task(name="deliveries.dead_letters_sweep")
def sweep_dead_letters() -> None:
    """Forget dead letters that were acknowledged."""
    global _letters_swept_to
    _letters_swept_to = listing.sweep_settled(_letters_swept_to)


@shared_task(name="deliveries.dead_letters_advance")
def advance_dead_letters(shard: int | None = None) -> int:
    """Move dead letters for the orders of a shard. Beat names none: each shard with orders gets its own task."""
    if shard is not None:
        return jobs.advance_jobs(shard=shard)
    shards = jobs.shards_under_way()
    for each in shards:
        advance_dead_letters.apply_async((each,), expires=jobs.CATCH_UP_SECONDS)
    return len(shards)


@shared_task(name="deliveries.journals_seal")
def seal_journals() -> int:
    return upkeep.seal_journals()


@shared_task(name="deliveries.segments_ship")
def ship_segments() -> int:
    return upkeep.ship_segments()


@shared_task(name="deliveries.segments_count")
def count_segments() -> int:
    return embedded.count_segments()


@shared_task(name="deliveries.archive_start")
def start_archive() -> bool:
    return archive_schedule.start()


@shared_task(name="deliveries.gauges_take")
def take_gauges() -> int:
    lanes = lanerows.count_lanes()
    return gauges.take_gauges(lanes=lanes) + regiongauges.take_region_gauges(lanes=lanes)


@shared_task(name="deliveries.counters_sample")
def sample_counters() -> int:
    return counterseries.sample_counters()


@shared_task(name="deliveries.metrics_sweep")
def sweep_metrics() -> dict[str, int]:
    gone = expiry.expire_segments(Path(settings.JOURNAL)) if settings.JOURNAL else 0
    return {"rows": expiry.expire_metrics(), "segments": gone}
