"""The accounts that subscriptions push as, and the service agent that mints their tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pushhub.common import names
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import access, grants, tree
from subscriptions.iam.roles import ACT_AS, GET_OPEN_ID_TOKEN, TOKEN_CREATOR
from subscriptions.models import Project, ServiceAccount, Subscription

#: A topic or a subscription in the JSON form of a request.
Resource = Mapping[str, Any]


def service_agent(project: Project) -> Principal:
    return Principal(f"serviceAccount:{project.service_agent}", unique_id=str(project.number), is_service_agent=True)


def can_agent_mint(account: ServiceAccount) -> bool:
    """Whether the service agent of the account's project may sign tokens for the account."""
    return access.allowed(service_agent(account.project), GET_OPEN_ID_TOKEN, account)


def grant_agent(account: ServiceAccount, *, caller: Principal = OPERATOR) -> None:
    """Let the service agent of the account's project sign for it, whatever the policies above say."""
    grants.grant_role(account, role=TOKEN_CREATOR, member=service_agent(account.project).member, caller=caller)


def accounts_signable(emails: Iterable[str]) -> dict[str, str]:
    """Return the unique ids, by email, of accounts that are enabled and may be signed for, as of the last second."""
    accounts = ServiceAccount.objects.filter(email__in=list(emails)).select_related("project")
    return {
        account.email: account.unique_id for account in accounts if not account.is_disabled and can_agent_mint(account)
    }


def check_references(
    subscription: Subscription, resource: Resource, fields: Collection[str], *, caller: Principal
) -> None:
    """Check that `caller` may set these fields of a subscription to what `resource` has. It precedes any lookup.

    A caller who creates or modifies a subscription that pushes as an account needs `iam.serviceAccounts.actAs`
    (docs/spec-delivery.md#push-token-preconditions), whatever is modified: on the present account, so that nobody else
    removes the token and sends the messages elsewhere, and on the new one. Sending dead letters to a topic needs
    `pubsub.topics.publish` on it: a subscription must not be a way around a topic's policy.
    """
    emails = {subscription.oidc_service_account_email}
    if "pushConfig" in fields:
        emails.add(resource.get("pushConfig", {}).get("oidcToken", {}).get("serviceAccountEmail", ""))
    for email in sorted(emails - {""}):
        account = names.service_account_name(subscription.project.project_id, email)
        _require(caller, ACT_AS, account, field="pushConfig.oidcToken.serviceAccountEmail")
    if "deadLetterPolicy" in fields:
        topic = resource.get("deadLetterPolicy", {}).get("deadLetterTopic", "")
        _require(caller, "pubsub.topics.publish", topic, field="deadLetterPolicy.deadLetterTopic")


def check_schema(resource: Resource, fields: Collection[str], *, caller: Principal) -> None:
    """Check that `caller` may attach the schema that `resource` names, if these fields include it."""
    if "schemaSettings" in fields:
        schema = resource.get("schemaSettings", {}).get("schema", "")
        _require(caller, "pubsub.schemas.attach", schema, field="schemaSettings.schema")


def _require(caller: Principal, permission: str, name: str, *, field: str) -> None:
    """Check a permission on a full name. The service refuses malformed names, which include an empty one."""
    if tree.is_name(name):
        access.require_named(caller, permission, name, field=field)
