"""Checks the message transforms of a subscription: their code, and what they make of the messages that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _

from deliveries.diagnosis.steps import Step, StepName, failed, ok, warning
from deliveries.models import Delivery
from deliveries.rules.outcome import Reason
from deliveries.store import lanerows
from deliveries.store.messagerows import read_payloads
from deliveries.transforming import Wire, transform_wire_messages
from pushhub.common.errors import InvalidArgument, ResourceExhausted
from subscriptions.models import Subscription
from subscriptions.services.transforms import check_function
from subscriptions.transforms.functions import Function, functions_on
from subscriptions.transforms.results import Failed

NAME = StepName.TRANSFORMS
#: The oldest messages that the functions are tried on, and for how long. A function may take half a second.
TRIED_MESSAGES = 50
TRIED_SECONDS = 2.0


def transforms_step(subscription: Subscription) -> Step:
    """Check the functions, run them on the oldest messages that wait, and name the first that they fail on."""
    functions = functions_on(subscription.message_transforms)
    if not functions:
        return ok(NAME, _("It has no message transforms."))
    try:
        return _unusable(subscription, functions) or _tried(subscription, functions)
    except ResourceExhausted:
        return warning(
            NAME, _("Functions of the project are running all the time."), _("Look for a slow function in the project.")
        )


def _unusable(subscription: Subscription, functions: Sequence[Function]) -> Step | None:
    for function in functions:
        try:
            check_function(subscription.project.project_id, function)
        except InvalidArgument as error:
            message = _("The function %(name)s cannot be used: %(reason)s")
            words = {"name": function.name, "reason": error.message}
            return failed(NAME, message % words, result=Reason.TRANSFORM_FAILED)
    return None


def _tried(subscription: Subscription, functions: Sequence[Function]) -> Step:
    ends = time.monotonic() + TRIED_SECONDS
    count = 0
    for message in _oldest_messages(subscription):
        [result] = transform_wire_messages(
            project=subscription.project.project_id, functions=functions, messages=[message], seconds=0
        )
        if isinstance(result, Failed):
            text = _("They fail on the message %(id)s, which waits: “%(reason)s”.")
            words = {"id": message["messageId"], "reason": result.why}
            return failed(NAME, text % words, result=Reason.TRANSFORM_FAILED)
        count += 1
        if time.monotonic() > ends:
            break
    text = _("Their code can be used, and they fail on none of the oldest waiting messages. Tried: %(count)d.")
    return ok(NAME, text % {"count": count})


def _oldest_messages(subscription: Subscription) -> Iterator[Wire]:
    """Yield the oldest messages that wait, region by region, as the index has them."""
    for region in lanerows.lanes_waiting(subscription.pk):
        rows = Delivery.objects.filter(subscription=subscription, region=region).order_by("message_id")
        # One payload in memory at a time: each may have 10 MB.
        for message_id in list(rows.values_list("message_id", flat=True)[:TRIED_MESSAGES]):
            yield from read_payloads([message_id]).values()
