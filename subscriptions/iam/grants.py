"""Policies in the database: `getIamPolicy`, `setIamPolicy` and `testIamPermissions` of any resource."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, transaction

from pushhub.common import names
from pushhub.common.errors import Aborted, InvalidArgument, clipped
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.rows import row_or_none
from subscriptions import selectors
from subscriptions.iam import access, epoch, policies, tree
from subscriptions.iam.members import is_foreign, parse_member
from subscriptions.iam.requests import OPTIONS, SET_IAM_POLICY, TEST_IAM_PERMISSIONS
from subscriptions.iam.roles import OWNER, SERVICE_AGENT
from subscriptions.models import Organization, Project, ServiceAccount
from subscriptions.models.iam import Group, GroupMember, Policy
from subscriptions.resources.masks import mask_words
from subscriptions.resources.table import drop_falsy

MAX_TESTED_PERMISSIONS = 100
#: Callers may ask for permissions of services that PushHub doesn't have, which nobody holds. Wildcards are refused.
PERMISSION_PATTERN = re.compile(r"[a-zA-Z0-9-]{1,60}(?:\.[a-zA-Z0-9-]{1,60}){2,3}", re.ASCII)
#: What `setIamPolicy` changes if the request has no mask.
DEFAULT_MASK = frozenset({"bindings", "etag"})
MASK_FIELDS = frozenset({"version", "bindings", "etag", "auditConfigs"})
GET_ACCOUNT = "iam.serviceAccounts.get"


def get_policy(resource: tree.Resource, *, options: object = None) -> dict[str, Any]:
    """Return the Policy of a resource in JSON form. `options` is a GetPolicyOptions."""
    parsed = OPTIONS.read(options or {})
    policies.check_version(parsed.get("requestedPolicyVersion", 0), field="options.requestedPolicyVersion")
    return _policy_resource(_row(resource))


def set_policy(resource: tree.Resource, request: object, *, caller: Principal = OPERATOR) -> dict[str, Any]:
    """Replace the policy of a resource and return the new one. `request` is a SetIamPolicyRequest.

    Raises Aborted if the request's etag isn't that of the current policy: another caller has changed it since.
    """
    parsed = SET_IAM_POLICY.read(request)
    policy = parsed.get("policy")
    if policy is None:
        raise InvalidArgument("You have not specified a policy in the request.", field="policy")
    named = parsed.get("updateMask", "")
    mask = frozenset(mask_words(named, known=MASK_FIELDS)) if named.strip() else DEFAULT_MASK
    policies.check_version(policy.get("version", 0), field="policy.version")
    bindings = policies.normalise_bindings(policy.get("bindings", []), kind=tree.kind_of(resource).word)
    etag = policy.get("etag", "") if "etag" in mask else ""
    row = _row(resource)
    policies.check_etag(etag, row.generation)
    if "bindings" in mask:
        # Before the transaction: 1,500 members are as many queries, during which nobody else could write to SQLite.
        _check_new(resource, bindings, known=row.bindings, caller=caller)
    with transaction.atomic():
        known, row = row.bindings, _row(resource, lock=True)
        policies.check_etag(etag, row.generation)
        if "bindings" in mask:
            if row.bindings != known:
                _check_new(resource, bindings, known=row.bindings, caller=caller)
            row.bindings = bindings
        if "auditConfigs" in mask:
            row.audit_configs = policy.get("auditConfigs", [])
        _store(row)
    return _policy_resource(row)


def list_held_permissions(name: str, request: object, *, caller: Principal) -> dict[str, Any]:
    """Return the permissions that the caller holds on the resource. `request` is a TestIamPermissionsRequest.

    Any caller may ask. Only callers who may look into the project learn that a resource doesn't exist.
    """
    permissions = TEST_IAM_PERMISSIONS.read(request).get("permissions", [])
    if len(permissions) > MAX_TESTED_PERMISSIONS:
        raise InvalidArgument(
            f"The value for permissions is too large. You passed {len(permissions)} in the request, "
            f"but the maximum value is {MAX_TESTED_PERMISSIONS}.",
            field="permissions",
        )
    for position, permission in enumerate(permissions):
        if not PERMISSION_PATTERN.fullmatch(permission):
            raise InvalidArgument(
                f"Permission {clipped(permission)} is not valid for this resource.", field=f"permissions[{position}]"
            )
    resource = tree.find_resource(name)
    if resource is None and may_know(caller, name):
        raise selectors.resource_missing(name.rpartition("/")[2], field="resource")
    granted = access.permissions_held(caller, resource, among=permissions) if resource is not None else set()
    answer = [permission for permission in dict.fromkeys(permissions) if permission in granted]
    return {"permissions": answer} if answer else {}


def may_know(caller: Principal, name: str) -> bool:
    """Whether `caller` may learn that there is no resource of this name."""
    above = tree.above(name)
    permission = f"{tree.kind_of_name(name).permissions}.get"
    return access.is_root(caller) if above is None else access.allowed(caller, permission, above)


def grant_role(resource: tree.Resource, *, role: str, member: str, caller: Principal = OPERATOR) -> dict[str, Any]:
    """Bind a member to a role and leave the rest of the policy as it is."""
    member = parse_member(member, field="member")
    policies.check_role(role, kind=tree.kind_of(resource).word, field="role")
    with transaction.atomic():
        row = _row(resource, lock=True)
        bindings = policies.add_bindings(row.bindings, role=role, member=member)
        _check_new(resource, bindings, known=row.bindings, caller=caller)
        row.bindings = policies.normalise_bindings(bindings, kind=row.kind)
        _store(row)
    return _policy_resource(row)


def revoke_role(resource: tree.Resource, *, role: str, member: str) -> dict[str, Any]:
    """Remove a member from a role and leave the rest of the policy as it is."""
    with transaction.atomic():
        row = _row(resource, lock=True)
        row.bindings = policies.remove_bindings(row.bindings, role=role, member=parse_member(member, field="member"))
        _store(row)
    return _policy_resource(row)


def rename_member(*, old: str, new: str) -> None:
    """Rename a member in all policies and groups, so that the next owner of the old name doesn't get its grants."""
    with transaction.atomic():
        for row in _binding(old):
            row.bindings = policies.replace_members(row.bindings, old=old, new=new)
            _store(row)
        GroupMember.objects.filter(member=old, group__members__member=new).delete()
        GroupMember.objects.filter(member=old).update(member=new)
    access.forget_decisions()
    epoch.end_after_commit()


def forget_member(member: str) -> None:
    """Remove a member from all policies and groups, so that a new account doesn't inherit grants to its address."""
    with transaction.atomic():
        for row in _binding(member):
            row.bindings = policies.remove_bindings(row.bindings, member=member)
            _store(row)
        GroupMember.objects.filter(member=member).delete()


def begin_policy(resource: tree.Resource, *, creator: Principal) -> None:
    """Store the first policy of a new project, folder or organization: its creator owns it.

    A project's service agent gets its role here, as it does from Google, but not if the project claims to be older.
    """
    bindings: list[policies.Binding] = []
    if creator != OPERATOR:
        bindings = policies.add_bindings(bindings, role=OWNER, member=parse_member(creator.member, field="member"))
    if isinstance(resource, Project) and policies.is_automatic_agent(resource.created_at):
        member = f"serviceAccount:{resource.service_agent}"
        bindings = policies.add_bindings(bindings, role=SERVICE_AGENT, member=member)
    if bindings:
        row = _row(resource)
        row.bindings = bindings
        _store(row)


def _binding(member: str) -> list[Policy]:
    """Return the policies that bind a member, locked until the transaction ends."""
    rows = Policy.objects.select_for_update().filter(bindings__icontains=member)
    return [row for row in rows if member in policies.members_of(row.bindings)]


def _row(resource: tree.Resource, *, lock: bool = False) -> Policy:
    """Return the stored policy, or an empty one that isn't stored."""
    key = {"kind": tree.kind_of(resource).word, "resource_pk": resource.pk}
    rows = Policy.objects.select_for_update() if lock else Policy.objects.all()
    return row_or_none(rows.filter(**key)) or Policy(**key, generation=0)


def _store(row: Policy) -> None:
    row.generation = policies.next_generation(row.generation, now_us=time.time_ns() // 1000)
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError:  # another caller stored the first policy of this resource in between
        raise Aborted(policies.CONFLICT) from None


def _policy_resource(row: Policy) -> dict[str, Any]:
    etag, version = policies.format_etag(row.generation), 1 if row.generation else 0
    return drop_falsy({"etag": etag, "version": version, "bindings": row.bindings, "auditConfigs": row.audit_configs})


def _check_new(
    resource: tree.Resource,
    bindings: Iterable[policies.Binding],
    *,
    known: Iterable[policies.Binding],
    caller: Principal,
) -> None:
    """Check that the members and roles which this write adds exist. Those bound before may be gone by now."""
    known = list(known)
    for member in sorted(policies.members_of(bindings) - policies.members_of(known)):
        _check_exists(member, caller)
    for role in {binding["role"] for binding in bindings} - {binding["role"] for binding in known}:
        if policies.is_custom(role):
            _check_custom(resource, role)


def matches_nobody(member: str, *, caller: Principal) -> bool:
    """Whether a member of a policy stands for nobody, as far as `caller` may know which groups and accounts exist."""
    if is_foreign(member):
        return True
    kind, _, email = member.partition(":")
    if kind == "group":
        return access.is_root(caller) and not Group.objects.filter(email=email).exists()
    if kind != "serviceAccount":
        return False
    domain = email.rpartition("@")[2]
    may_know = not domain.endswith(names.ACCOUNT_DOMAIN) or access.is_root(caller) or _is_visible(kind, domain, caller)
    return may_know and not _account_exists(email)


def _check_exists(member: str, caller: Principal) -> None:
    """Check that a group or service account exists, if `caller` could see it. Others are kept as they are written.

    Otherwise the answer would tell which projects and accounts other tenants have. An account that is created later
    gets nothing from a policy that names it already (services/service_accounts.py).
    """
    kind, _, email = member.removeprefix("deleted:").partition(":")
    domain = email.partition("?")[0].rpartition("@")[2]
    if kind not in ("serviceAccount", "group") or not _is_visible(kind, domain, caller):
        return
    exists = Group.objects.filter(email=email).exists() if kind == "group" else _account_exists(email)
    # A policy may keep a deleted member of this deployment, but can't gain one.
    if not exists or member.startswith("deleted:"):
        word = "Group" if kind == "group" else "Service account"
        raise InvalidArgument(f"{word} {clipped(email)} does not exist.", field="policy.bindings")


def _is_visible(kind: str, domain: str, caller: Principal) -> bool:
    """Whether PushHub holds the groups or service accounts of a domain and `caller` may see them."""
    if kind == "group":
        return access.is_root(caller) and Group.objects.filter(email__endswith=f"@{domain}").exists()
    if domain == names.AGENT_DOMAIN:
        return access.is_root(caller)
    project, suffix, _ = domain.partition(names.ACCOUNT_DOMAIN)
    name, _, of_domain = project.partition(".")  # for the project example.com:shop it is shop.example.com
    owner = row_or_none(Project.objects.filter(project_id=f"{of_domain}:{name}" if of_domain else project))
    return bool(suffix) and owner is not None and access.allowed(caller, GET_ACCOUNT, owner)


def _account_exists(email: str) -> bool:
    if names.is_agent_email(email):
        number = names.service_agent_number(email)
        return number is not None and Project.objects.filter(number=number).exists()
    return ServiceAccount.objects.filter(email=email).exists()


def _check_custom(resource: tree.Resource, role: str) -> None:
    """Check that a custom role belongs to the project of the resource, or to the organization above it."""
    custom_role = access.find_role(role)
    owners = [row for row in tree.lineage(resource) if isinstance(row, (Project, Organization))]
    if custom_role is None or custom_role.deleted or (custom_role.project or custom_role.organization) not in owners:
        raise InvalidArgument(
            f"Role {clipped(role)} does not exist in the resource's hierarchy.", field="policy.bindings"
        )
