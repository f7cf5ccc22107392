"""Which step a delivery takes next: the same in a push worker, which does many at a time, and in a stock worker."""

from __future__ import annotations

from enum import Enum, auto

from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.plans import PushPlan


class Step(Enum):
    """A step between fetch and settle."""

    #: Make the subscription's plan, and find memory for a large message and read it.
    PLAN = auto()
    #: Apply the subscription's message transforms.
    TRANSFORM = auto()
    PUSH = auto()


def next_step(delivery: PushDelivery, plan: PushPlan | None) -> Step:
    """Return the next step of a delivery that isn't settled; `plan` is its subscription's, if there is a valid one."""
    # Of a subscription without an endpoint, nobody reads the messages.
    if plan is None or (delivery.task.is_reference and plan.endpoint is not None):
        return Step.PLAN
    if plan.functions and (delivery.transformed is None or delivery.transformed_by != plan.functions):
        return Step.TRANSFORM
    return Step.PUSH
