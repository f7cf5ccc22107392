"""Sends one push: turns a delivery into a request, by the plan of its subscription."""

from __future__ import annotations

from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.httpclient import Client
from deliveries.push.sending.plans import PushPlan
from deliveries.rules.envelope import metadata_headers, push_body, trace_headers, unwrapped_body
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.outcome import Verdict
from deliveries.store.regionholds import is_alone
from pushhub.common import tracing

KEEP_ANSWERS = "x-pushhub-keep-answers"


def send(client: Client, delivery: PushDelivery, plan: PushPlan, now_ms: int) -> None:
    """Post the message of a delivery, or settle the delivery if it is not to be posted.

    May raise any error for a message that can't be turned into a request.
    """
    settings = plan.settings
    if settings is None:
        return delivery.settle_as(Verdict.DROP)
    task = delivery.task
    if publish_time_ms(delivery.message_id) < now_ms - settings.retention_seconds * 1000:
        return delivery.settle_as(Verdict.DROP, "expired")
    if plan.refusal:
        return delivery.settle_as(Verdict.NACK, plan.refusal)
    is_fenced = settings.ordered or not is_alone()
    if plan.endpoint is None or (is_fenced and not delivery.may_begin()):
        return delivery.settle_as(Verdict.RELEASE)
    headers = trace_headers(task.message)
    if headers and tracing.is_on():
        headers = _traced(delivery, headers[0][1])
    message = (delivery.transformed if plan.functions else None) or task.message
    if settings.no_wrapper:
        body = unwrapped_body(message)
        if settings.write_metadata:
            headers += metadata_headers(message, subscription=settings.name)
    else:
        attempt = task.attempt if settings.shows_attempts else None
        body = push_body(message, subscription=settings.name, delivery_attempt=attempt)
    delivery.request = client.post(
        plan.endpoint,
        body,
        headers=headers,
        timeout_s=settings.ack_deadline_seconds,
        may_begin=delivery.may_begin if is_fenced else None,
        keeps_answer=settings.attributes.get(KEEP_ANSWERS) == "true",
        on_done=delivery.done,
    )
    # The next attempt is transformed again.
    delivery.transformed = None
    if delivery.by_reference:
        # The request's body is now the only copy.
        delivery.drop_payload()
    return None


def _traced(delivery: PushDelivery, traceparent: str) -> list[tuple[str, str]]:
    """Record the trace of a delivery. Return the header that makes the endpoint's spans children of this attempt."""
    trace = delivery.trace = tracing.parse_context(traceparent)
    if trace is None:
        return [("traceparent", traceparent)]
    task = delivery.task
    attempt = tracing.attempt_context(trace, delivery.message_id, task.subscription_id, task.attempt)
    return [("traceparent", attempt.traceparent)]
