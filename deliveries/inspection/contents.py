"""What a reader may see of a message: the original, or what a subscription's message transforms make of it."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, OuterRef, Q, QuerySet

from deliveries.models import Delivery, Message
from deliveries.rules.payload import parse_attributes, wire_message
from deliveries.transforming import Wire, transform_wire_messages
from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.iam import access
from subscriptions.iam.methods import GET_TOPIC, PULL, may_call
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription, Topic
from subscriptions.transforms.functions import functions_on
from subscriptions.transforms.results import Failed, Filtered

#: Why a function fails is not told: an error may quote the message.
FAILED = Failed("The message transforms of the subscription fail with the message.")


def topic_of(row: Message) -> Topic | None:
    """Return the topic of a message, or None for a deleted one: a join would leave out the message itself then."""
    return row_or_none(Topic.objects.select_related("project").filter(pk=row.topic_id))


def wire_of(row: Message) -> Wire:
    return wire_message(row.pk, bytes(row.data), parse_attributes(row.attributes), row.ordering_key)


def sees_originals(caller: Principal, topic: Topic | None, subscriptions: Collection[Subscription]) -> bool:
    """Return whether a reader may see a message as it was published to the topic; None stands for a deleted one.

    `subscriptions` got the message, and the caller may pull from them. Whoever may see the topic, or pull from all of
    its project, or from a subscription that changes nothing, may see the original.
    """
    return (
        access.is_root(caller)
        or any(not functions_on(subscription.message_transforms) for subscription in subscriptions)
        or (topic is not None and (may_call(caller, GET_TOPIC, topic) or may_call(caller, PULL, topic.project)))
    )


def rows_with_originals(caller: Principal, rows: QuerySet[Message]) -> QuerySet[Message]:
    """Return the messages of which `sees_originals` is true, as far as they wait."""
    if access.is_root(caller):
        return rows
    projects = rows_callable(caller, PULL, Project.objects.order_by())
    unchanging = Subscription.objects.order_by().filter(Q(message_transforms__isnull=True) | Q(message_transforms=[]))
    waiting = Delivery.objects.filter(message=OuterRef("pk"), subscription__in=rows_callable(caller, PULL, unchanging))
    return rows.filter(
        Q(topic__in=rows_callable(caller, GET_TOPIC, Topic.objects.order_by()))
        | Q(topic__in=Topic.objects.order_by().filter(project__in=projects))
        | Exists(waiting)
    )


def as_delivered(message: Wire, subscription: Subscription) -> Wire | Failed | Filtered:
    """Return what the subscription gets of a message. Raises ResourceExhausted while functions are busy."""
    functions = functions_on(subscription.message_transforms)
    if not functions:
        return message
    project = subscription.project.project_id
    [result] = transform_wire_messages(project=project, functions=functions, messages=[message], seconds=0)
    return FAILED if isinstance(result, Failed) else result
