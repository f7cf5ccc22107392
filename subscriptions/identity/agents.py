"""Whom subscriptions act through: the accounts they push as, and the service agent that mints the tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pushhub.common import names
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import access, grants, tree
from subscriptions.iam.roles import ACT_AS, GET_OPEN_ID_TOKEN, TOKEN_CREATOR
from subscriptions.models import Project, ServiceAccount, Subscription

#: A topic or a subscription as a request has it.
Given = Mapping[str, Any]


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


def references_check(subscription: Subscription, given: Given, fields: Collection[str], *, caller: Principal) -> None:
    """May `caller` give these fields of a subscription the values in `given`? Asked before anybody looks them up.

    Who creates or modifies a subscription that pushes as an account needs `iam.serviceAccounts.actAs` on it, whatever
    is modified (seeds, "Authentication configuration"): on the account that it pushes as now, so that nobody else takes
    the token out and sends the messages elsewhere, and on the new one. To send dead letters to a topic needs
    `pubsub.topics.publish` there: a subscription must not be a way around a topic's policy.
    """
    emails = {subscription.oidc_service_account_email}
    if "pushConfig" in fields:
        emails.add(given.get("pushConfig", {}).get("oidcToken", {}).get("serviceAccountEmail", ""))
    for email in sorted(emails - {""}):
        account = names.service_account_name(subscription.project.project_id, email)
        _require(caller, ACT_AS, account, field="pushConfig.oidcToken.serviceAccountEmail")
    if "deadLetterPolicy" in fields:
        topic = given.get("deadLetterPolicy", {}).get("deadLetterTopic", "")
        _require(caller, "pubsub.topics.publish", topic, field="deadLetterPolicy.deadLetterTopic")


def schema_check(given: Given, fields: Collection[str], *, caller: Principal) -> None:
    """May `caller` have a topic's messages checked against the schema that `given` names in these fields?"""
    if "schemaSettings" in fields:
        schema = given.get("schemaSettings", {}).get("schema", "")
        _require(caller, "pubsub.schemas.attach", schema, field="schemaSettings.schema")


def _require(caller: Principal, permission: str, name: str, *, field: str) -> None:
    """What is no full name, as no value is, is for the service to refuse."""
    if tree.is_name(name):
        access.require_named(caller, permission, name, field=field)
