"""What has become of the messages of a subscription that no longer wait."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Sum

from deliveries.deadletters.listing import unsettled
from deliveries.inspection.conditions import Condition
from deliveries.models import MetricHour
from deliveries.rules.outcome import Verdict
from deliveries.store.metricrows import of_resources
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Subscription

#: Outcomes are counted for this long back, to the beginning of an hour.
PERIOD = timedelta(days=1)
#: More dead letters than this are not counted.
MAX_DEAD_LETTERS = 10_000
#: The events and classes of a metric that count as each outcome; the class None stands for all. A filter's messages are
#: counted as acknowledged ones (telemetry/sinks/counters.py).
COUNTED: dict[str, tuple[tuple[str, str | None], ...]] = {
    "acknowledged": tuple((event, Verdict.ACK.value) for event in ("push", "pull", "streaming_pull")),
    "dead_lettered": (("dead_letter", None),),
    "filtered": (("acked", "filter"),),
    "dropped": (("drop", None),),
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How many messages ended in each way within PERIOD, as far as they are counted."""

    acknowledged: int = 0
    dead_lettered: int = 0
    #: By the subscription's filter or by its message transforms.
    filtered: int = 0
    #: Past their retention, revoked or skipped.
    dropped: int = 0
    #: Dead letters that nobody has dealt with yet, whenever they came.
    dead_letters_waiting: int = 0

    @property
    def condition(self) -> Condition:
        """What this says of a subscription of which nothing waits."""
        if self.dead_lettered or self.dropped or self.dead_letters_waiting:
            return Condition.LOST
        return Condition.FILTERED if self.filtered and not self.acknowledged else Condition.IDLE


def subscription_outcomes(subscription: Subscription, *, clock: Clock = utcnow) -> Outcomes:
    """Return the outcomes, from two queries."""
    start = (clock() - PERIOD).replace(minute=0, second=0, microsecond=0)
    rows = MetricHour.objects.filter(of_resources([subscription.name], at__gte=start)).order_by()
    counts = rows.values_list("event", "response_class").annotate(Sum("count"))
    totals = dict.fromkeys(COUNTED, 0)
    for event, response_class, count in counts:
        for outcome, kinds in COUNTED.items():
            if (event, response_class) in kinds or (event, None) in kinds:
                totals[outcome] += count
    return Outcomes(**totals, dead_letters_waiting=unsettled(subscription)[: MAX_DEAD_LETTERS + 1].count())
