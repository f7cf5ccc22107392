"""Looks for a poison message: one that is refused again and again while later messages of its key wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.utils.translation import gettext as _

from deliveries.backlog.backlog import Backlog, Lane
from deliveries.diagnosis.steps import Step, StepName, StepStatus, ok
from deliveries.inspection.lanes import blockers, lane_views
from deliveries.inspection.words import result_text
from deliveries.models import Delivery
from deliveries.store import statements
from subscriptions.selectors import PushSettings

#: So many nacks in a row make a message poison.
MIN_ATTEMPTS = 3
#: Of the oldest deliveries, and of those whose retries are due next, so many are looked at.
LOOKED_AT = 100


def ordering_step(backlog: Backlog, push_settings: PushSettings) -> Step:
    """Name the message that blocks the most others of its ordering key. May raise redis.RedisError."""
    if not push_settings.ordered:
        return ok(StepName.ORDERING, _("It delivers messages in any order."))
    regions = sorted({settings.REGION, *statements.lanes_waiting(push_settings.id)})
    found = [pair for region in regions for pair in _poisoned(backlog, Lane(push_settings.id, region))]
    if not found:
        return ok(StepName.ORDERING, _("No message of an ordering key that is refused again and again was found."))
    row, behind = max(found, key=lambda pair: pair[1])
    values = {"id": row.message_id, "behind": behind, "count": row.attempts, "result": result_text(row.last_result)}
    return Step(
        StepName.ORDERING,
        StepStatus.WARNING,
        _(
            "The message %(id)s was refused %(count)d times, last with %(result)s, and later messages of its ordering "
            "key wait for it: %(behind)d."
        )
        % values,
        _("If the message is at fault, dead-letter it or skip it. pushhub messages has a command for each."),
        message_id=row.message_id,
    )


def _poisoned(backlog: Backlog, lane: Lane) -> Sequence[tuple[Delivery, int]]:
    """Return the poison messages of a lane, and how many wait behind each."""
    [view] = lane_views(backlog, [lane])
    rows = Delivery.objects.filter(subscription=lane.subscription_id, region=lane.region)
    oldest = rows.order_by("message_id").values_list("message_id", flat=True)[:LOOKED_AT]
    heads = blockers(backlog, lane, sorted({*view.retry_ids, *oldest}))
    behind = {head.message_id: head.behind for head in heads.values() if head.behind}
    poison = rows.filter(message_id__in=list(behind), attempts__gte=MIN_ATTEMPTS).order_by("message_id")
    return [(row, behind[row.message_id]) for row in poison]
