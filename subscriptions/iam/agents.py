"""Whom subscriptions act through: the accounts they push as, and the service agent that mints the tokens."""

from __future__ import annotations

from collections.abc import Iterable

from pushhub.names import DELETED_SCHEMA
from pushhub.principals import OPERATOR, Principal
from subscriptions import selectors
from subscriptions.iam import access, grants
from subscriptions.iam.roles import ACT_AS, GET_OPEN_ID_TOKEN, TOKEN_CREATOR
from subscriptions.models import Project, ServiceAccount, Subscription, Topic


def service_agent(project: Project) -> Principal:
    return Principal(f"serviceAccount:{project.service_agent}", unique_id=str(project.number), is_service_agent=True)


def agent_may_mint(account: ServiceAccount) -> bool:
    """Whether the service agent of the account's project may sign tokens in the account's name."""
    return access.allowed(service_agent(account.project), GET_OPEN_ID_TOKEN, account)


def agent_grant(account: ServiceAccount, *, caller: Principal = OPERATOR) -> None:
    """Let the service agent of the account's project sign for it, whatever the policies above say."""
    grants.role_grant(account, role=TOKEN_CREATOR, member=service_agent(account.project).member, caller=caller)


def accounts_signable(emails: Iterable[str]) -> set[str]:
    """Those of the accounts that exist, are not disabled and may be signed for. Answers are at most a second old."""
    accounts = ServiceAccount.objects.filter(email__in=list(emails)).select_related("project")
    return {account.email for account in accounts if not account.is_disabled and agent_may_mint(account)}


def references_check(subscription: Subscription, fields: set[str], *, caller: Principal) -> None:
    """May `caller` set these fields, given what the subscription then acts through?

    Who creates or modifies a subscription that pushes as an account needs `iam.serviceAccounts.actAs` on it, whatever
    is modified (seeds, "Authentication configuration"). To send dead
    letters to a topic needs `pubsub.topics.publish` there: a subscription must not be a way around a topic's policy.
    """
    if access.is_root(caller):
        return
    emails = {subscription.oidc_service_account_email} - {""}
    for account in ServiceAccount.objects.filter(email__in=emails).select_related("project"):
        access.require(caller, ACT_AS, account)
    if "deadLetterPolicy" in fields and subscription.dead_letter_topic is not None:
        access.require(caller, "pubsub.topics.publish", subscription.dead_letter_topic)


def schema_check(topic: Topic, fields: set[str], *, caller: Principal) -> None:
    """May `caller` have a topic's messages checked against the schema that these fields name?"""
    settings = topic.schema_settings
    if "schemaSettings" in fields and settings and settings["schema"] != DELETED_SCHEMA and not access.is_root(caller):
        access.require(caller, "pubsub.schemas.attach", selectors.schema_get(name=settings["schema"]))
