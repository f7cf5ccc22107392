"""A delivery and its plan, as the steps of the push worker have them, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from deliveries.backlog.records import Lane
from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.taskmessage import DeliverTask
from subscriptions.transforms.functions import Function


def plan_with(functions: Sequence[Function] = ()) -> PushPlan:
    settings: Any = SimpleNamespace(
        name="projects/shop/subscriptions/push",
        retention_seconds=10**12,
        ordered=False,
        no_wrapper=True,
        write_metadata=False,
        ack_deadline_seconds=10,
        attributes={},
    )
    endpoint: Any = object()
    return PushPlan(settings, endpoint, 0.0, functions=functions)


def delivery_with(plan: PushPlan | None, *, data: str = "eA==") -> PushDelivery:
    message = {"messageId": "1", "publishTime": "2021-02-26T19:13:55.749Z", "data": data}
    task = DeliverTask(1, "local", 1, message)
    delivery = PushDelivery(task, "1.1.local", batch=None, lane=Lane(1, "local"), finish=lambda _: None)
    delivery.plan = plan
    return delivery
