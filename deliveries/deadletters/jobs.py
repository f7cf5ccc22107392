"""Orders to redrive or discard dead letters of a subscription, chosen ones or all, at a rate.

The maintenance worker moves some of each order at every tick. How far an order has come is written in the transaction
that moves the dead letters, so it goes on from there after a crash, and ticks that overlap do nothing twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db.models import QuerySet

from deliveries.deadletters.listing import unsettled
from deliveries.deadletters.moving import BATCH, METHODS, Action, batches, check_redrivable, move_batch
from deliveries.models import DeadLetter, DeadLetterJob
from deliveries.rules.shards import is_in, shard_of
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import FailedPrecondition, InvalidArgument, PushHubError
from pushhub.common.principals import Principal
from pushhub.common.replica import subtract_age
from pushhub.common.rows import row_or_none
from subscriptions import audit
from subscriptions.iam.methods import authorize
from subscriptions.models import Subscription

logger = logging.getLogger(__name__)

DEFAULT_RATE = 10
#: The failure of an order that somebody stopped.
STOPPED = "stopped"
MAX_RATE = 1000
#: After a pause, an order makes up for so many seconds at most.
CATCH_UP_SECONDS = 10.0
#: An order that moves nothing for so long has nobody who carries it out.
STALLED = timedelta(minutes=1)
#: How long one tick works on one order.
TICK_SECONDS = 2.0


def begin_job(
    source: Subscription, *, action: str, rate: int, caller: Principal, chosen_ids: Sequence[int] | None = None
) -> DeadLetterJob:
    """Order that the chosen dead letters of a subscription, or all present ones, are redriven or discarded.

    Raises FailedPrecondition if there are none, if the subscription can't take them, or while another order runs.
    """
    if not 1 <= rate <= MAX_RATE:
        raise InvalidArgument(
            f"The rate must be between 1 and {MAX_RATE} messages a second.", field="messagesPerSecond"
        )
    if action == Action.REDRIVE:
        check_redrivable(source)
    with write_transaction():
        row_or_none(Subscription.objects.select_for_update().filter(pk=source.pk))
        letters = _ordered(DeadLetter.objects.filter(subscription=source), chosen_ids)
        last_id = letters.order_by("-message_id").values_list("message_id", flat=True).first()
        if last_id is None:
            raise FailedPrecondition(f"There are no dead letters (resource={source.subscription_id}).")
        if running_job(source) is not None:
            raise FailedPrecondition(
                f"Dead letters are being moved already; stop that first (resource={source.subscription_id})."
            )
        # Only the latest is shown, and the audit log has them all.
        DeadLetterJob.objects.filter(subscription=source).delete()
        job = DeadLetterJob.objects.create(
            subscription=source,
            action=action,
            last_id=last_id,
            chosen_ids=None if chosen_ids is None else sorted(set(chosen_ids)),
            rate=rate,
            member=caller.member,
            is_superuser=caller.is_superuser,
            unique_id=caller.unique_id,
            total=letters.count(),
        )
        after = {"messages": job.total, "messagesPerSecond": rate}
        audit.carried_out(method=METHODS[Action(action)], row=source, after=after)
    return job


def _ordered(letters: QuerySet[DeadLetter], chosen_ids: Sequence[int] | None) -> QuerySet[DeadLetter]:
    return letters if chosen_ids is None else letters.filter(message_id__in=chosen_ids)


def running_job(source: Subscription) -> DeadLetterJob | None:
    return DeadLetterJob.objects.filter(subscription=source, finished_at=None).order_by("pk").first()


def stalled_since(job: DeadLetterJob, *, clock: Clock = utcnow) -> datetime | None:
    """Return since when an order has not gone on although it has not ended; None if it goes on."""
    since: datetime = job.advanced_at or job.created_at
    return since if job.finished_at is None and subtract_age(clock()) - since > STALLED else None


def stop_job(source: Subscription, *, clock: Clock = utcnow) -> bool:
    """End the order that runs; what it has not moved yet stays. Return whether there was one."""
    with write_transaction():
        job = running_job(source)
        if job is None:
            return False
        DeadLetterJob.objects.filter(pk=job.pk, finished_at=None).update(finished_at=clock(), failure=STOPPED)
        audit.carried_out(method=METHODS[Action(job.action)], row=source, after={"stopped": True})
    return True


def shards_under_way() -> set[int]:
    """Return the shards of the subscriptions with an order that has not ended."""
    orders = DeadLetterJob.objects.filter(finished_at=None)
    return set(map(shard_of, orders.values_list("subscription_id", flat=True)))


def advance_jobs(*, shard: int | None = None, clock: Clock = utcnow) -> int:
    """Move as many dead letters of each order, or each order of a shard, as its rate allows now; return how many.

    Raises an error that ended the turn of an order, after the turns of the others.
    """
    moved = 0
    unexpected: Exception | None = None
    for job in DeadLetterJob.objects.filter(finished_at=None).order_by("pk"):
        if not is_in(job.subscription_id, shard):
            continue
        try:
            moved += _advance(job, clock())
        except PushHubError as error:
            running = DeadLetterJob.objects.filter(pk=job.pk, finished_at=None)
            running.update(finished_at=clock(), failure=error.message)
        except Exception as error:
            logger.exception("order %d to move dead letters failed", job.pk)
            unexpected = error
    if unexpected is not None:
        raise unexpected
    return moved


def _advance(job: DeadLetterJob, now: datetime) -> int:
    sources = Subscription.objects.select_related("project", "topic__project")
    source = row_or_none(sources.filter(pk=job.subscription_id))
    if source is None:
        raise FailedPrecondition("The subscription was deleted.")
    caller = Principal(job.member, is_superuser=job.is_superuser, unique_id=job.unique_id)
    authorize(caller, METHODS[Action(job.action)], {"subscription": source.name})
    seconds = min((now - (job.advanced_at or job.created_at)).total_seconds(), CATCH_UP_SECONDS)
    seconds = seconds if job.advanced_at else max(seconds, 1.0)
    allowance = int(job.rate * seconds)
    # The next tick makes up for the part of a message that this one may not move.
    advanced_to = now - timedelta(seconds=seconds - allowance / job.rate)
    moved, until = 0, time.monotonic() + TICK_SECONDS
    while moved < allowance and time.monotonic() < until:
        count = _advance_batch(job, source, caller, limit=allowance - moved, now=advanced_to)
        if count is None:
            break
        moved += count
    return moved


def _advance_batch(
    job: DeadLetterJob, source: Subscription, caller: Principal, *, limit: int, now: datetime
) -> int | None:
    """Move the next batch and note how far the order is; None if it has ended."""
    with write_transaction():
        current = row_or_none(DeadLetterJob.objects.select_for_update().filter(pk=job.pk, finished_at=None))
        if current is None:
            return None
        letters = _ordered(unsettled(source), current.chosen_ids)
        letters = letters.filter(message_id__gt=current.position, message_id__lte=current.last_id)
        ids = list(letters.order_by("message_id").values_list("message_id", flat=True)[: min(limit, BATCH)])
        if not ids:
            current.finished_at = now
            current.save(update_fields=["finished_at"])
            return None
        batch = batches(ids)[0]
        moved = move_batch(source, batch, action=current.action, caller=caller)
        current.position = batch[-1]
        current.done += len(moved.message_ids)
        current.advanced_at = now
        current.save(update_fields=["position", "done", "advanced_at"])
    moved.announce_all()
    return len(batch)
