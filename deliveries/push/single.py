"""Pushes one message in a stock Celery worker: Celery fetches it, requests sends it, the settler settles it."""

from __future__ import annotations

import logging
import threading
import time
from functools import cache
from typing import NamedTuple

from deliveries.backlog.records import Lane
from deliveries.push import waker
from deliveries.push.preparer import with_payloads
from deliveries.push.results.attempts import attempts_of
from deliveries.push.results.settler import settle_now
from deliveries.push.sending.delivery import PushDelivery, Step, next_step
from deliveries.push.sending.httpclient import Client, blocking_client
from deliveries.push.sending.plans import PlanBook
from deliveries.push.sending.sender import send
from deliveries.push.transformer import Transformer
from deliveries.rules.outcome import Reason, Verdict
from deliveries.rules.taskmessage import DeliverTask
from deliveries.telemetry.events import Attempts
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.jobs import repeat_in_outages

logger = logging.getLogger(__name__)


class Sender(NamedTuple):
    """What all pushes of a process share."""

    client: Client
    plans: PlanBook
    #: Only one thread may load plans.
    lock: threading.Lock


@cache
def _sender() -> Sender:
    client = blocking_client()
    return Sender(client, PlanBook(client), threading.Lock())


def deliver_one(task: DeliverTask, *, task_id: str) -> Attempts:
    """Push a message, wait for the result, settle it, and return the event of the attempt.

    It waits out any outage of the database and of Redis: if its worker ends meanwhile, the message is sent again. If it
    can't settle for another reason, it raises that error, and the audit sends the message again.
    """
    ended = threading.Event()
    lane = Lane(task.subscription_id, task.region)
    delivery = PushDelivery(task, task_id, batch=None, lane=lane, finish=lambda _: ended.set())
    try:
        while not delivery.finished and not _take_step(delivery, ended):
            pass
    except Exception:
        logger.exception("push of message %d failed", delivery.message_id)
        delivery.settle_as(Verdict.NACK, Reason.INTERNAL)
    record = f"{waker.here.name}/#{task.attempt}" if waker.here is not None else ""
    flows = repeat_in_outages(lambda: settle_now([delivery], record=record), what="to settle a push")
    [event] = attempts_of([delivery], flows, worker="single")
    observe([event])
    return event


def _take_step(delivery: PushDelivery, ended: threading.Event) -> bool:
    """Take the next step of the delivery. Return whether it was the last."""
    plan = delivery.plan
    step = next_step(delivery, plan)
    if step is Step.PLAN or plan is None:
        repeat_in_outages(lambda: _prepare(delivery), what="to prepare a push")
    elif step is Step.TRANSFORM:
        _transform(delivery, ended)
    else:
        send(_sender().client, delivery, plan, time.time_ns() // 1_000_000)
    return step is Step.PUSH


def _prepare(delivery: PushDelivery) -> None:
    """Make the plan anew, as nobody tells this process of changes, and read the payload."""
    subscription_id, plans = delivery.task.subscription_id, _sender().plans
    with _sender().lock:
        plans.forget([subscription_id])
        plans.load([subscription_id])
        delivery.plan = plans.get(subscription_id, now=time.monotonic())
    if delivery.plan is not None and delivery.plan.endpoint is not None:
        with_payloads([delivery])


def _transform(delivery: PushDelivery, ended: threading.Event) -> None:
    """Apply the subscription's functions, which may settle the delivery."""
    functions = delivery.plan.functions if delivery.plan is not None else ()
    transformer = Transformer(functions_of=lambda _: functions, resume=lambda _: ended.set(), admit=lambda _: True)
    try:
        transformer.take_on([delivery])
        ended.wait()
    finally:
        transformer.stop()
