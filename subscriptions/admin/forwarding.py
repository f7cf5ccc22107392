"""What a service agent needs to forward dead letters, and how the console grants it."""

from __future__ import annotations

from pushhub.common.principals import Principal
from subscriptions.iam import access, grants, tree
from subscriptions.iam.methods import SET_POLICY, authorize_row
from subscriptions.identity import agents
from subscriptions.models import Subscription

#: Permission and role, on the topic and on the subscription.
TO_TOPIC = ("pubsub.topics.publish", "roles/pubsub.publisher")
FROM_SUBSCRIPTION = ("pubsub.subscriptions.consume", "roles/pubsub.subscriber")


def forwarding_missing(row: Subscription) -> list[tuple[tree.Resource, str]]:
    """Return the roles that the service agent lacks to forward dead letters, each with its resource."""
    topic = row.dead_letter_topic
    if topic is None:
        return []
    agent = agents.service_agent(row.project)
    needed = ((topic, TO_TOPIC), (row, FROM_SUBSCRIPTION))
    return [
        (resource, role) for resource, (permission, role) in needed if not access.allowed(agent, permission, resource)
    ]


def grant_forwarding(row: Subscription, *, caller: Principal) -> None:
    """Grant the service agent what it lacks to forward dead letters. The caller must be allowed to grant it."""
    member = agents.service_agent(row.project).member
    for resource, role in forwarding_missing(row):
        authorize_row(caller, SET_POLICY, resource)
        grants.grant_role(resource, role=role, member=member, caller=caller)
