"""Sends a test message to a subscription's endpoint as a push worker would, and returns the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from deliveries.push.sending.httpclient import Client, Headers, PushResult, push_client
from deliveries.push.sending.plans import PlanBook, PushPlan
from deliveries.rules.envelope import metadata_headers, push_body, unwrapped_body
from deliveries.rules.ids import first_id_at
from deliveries.rules.outcome import Reason
from deliveries.rules.payload import wire_message
from pushhub.common.errors import FailedPrecondition
from pushhub.common.tenantpool import step_aside_or_refuse
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings

#: The longest wait for a response, because a person and a thread of the web server wait for it.
MAX_SECONDS = 10.0
DATA = b"A test message from PushHub"


def send_probe(subscription: Subscription, *, data: bytes = DATA, attribute: str = "pushhub-test") -> PushResult:
    """POST a message with an attribute, which is in no backlog and no metric. Return the status or why there is none.

    Raises ResourceExhausted while too many others wait for something.
    """
    if not subscription.push_endpoint:
        raise FailedPrecondition(f"Only a push subscription has an endpoint (resource={subscription.subscription_id}).")
    step_aside_or_refuse()
    loop = asyncio.new_event_loop()
    try:
        client = push_client(loop)
        plans = PlanBook(client)
        plans.load([subscription.pk])
        plan = plans.get(subscription.pk, now=time.monotonic())
        result = loop.run_until_complete(_post(client, plan, data, {attribute: "true"}))
        loop.run_until_complete(client.close())
        return result
    finally:
        loop.close()


async def _post(client: Client, plan: PushPlan | None, data: bytes, attributes: Mapping[str, str]) -> PushResult:
    if plan is None or plan.refusal:
        return PushResult(0, plan.refusal if plan is not None else Reason.INTERNAL, 0.0)
    if plan.settings is None or plan.endpoint is None:
        raise FailedPrecondition("The subscription is paused, detached or deleted.")
    headers, body = _request(plan.settings, data, attributes)
    result: asyncio.Future[PushResult] = asyncio.get_running_loop().create_future()
    seconds = min(float(plan.settings.ack_deadline_seconds), MAX_SECONDS)
    client.post(plan.endpoint, body, headers=headers, timeout_s=seconds, on_done=result.set_result)
    return await result


def _request(settings: PushSettings, data: bytes, attributes: Mapping[str, str]) -> tuple[Headers, bytes]:
    message = wire_message(first_id_at(time.time_ns() // 1_000_000), data, attributes, "")
    if not settings.no_wrapper:
        attempt = 1 if settings.shows_attempts else None
        return [], push_body(message, subscription=settings.name, delivery_attempt=attempt)
    headers = metadata_headers(message, subscription=settings.name) if settings.write_metadata else []
    return headers, unwrapped_body(message)
