"""Decides what a caller may do: everything that the policies from the resource up to its organization grant."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from django.conf import settings
from django.db.models import Q

from pushhub.common import names
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import PermissionDenied, error_info
from pushhub.common.expiring import ExpiringCache
from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.iam import epoch, members, tree
from subscriptions.iam.roles import PREDEFINED
from subscriptions.models.iam import GroupMember, Policy, RoleResource

#: Enough for every pair of caller and topic that is busy within a second.
CACHE_ENTRIES = 20_000

Key = tuple[str, ...]

#: With these caches, a hundred publishes per second ask the database once.
decisions: ExpiringCache[Key, bool] = ExpiringCache(seconds=epoch.KEPT_SECONDS, max_entries=CACHE_ENTRIES)
#: The roles that a caller holds on a project or above, which all its topics share.
_inherited: ExpiringCache[Key, frozenset[str]] = ExpiringCache(seconds=epoch.KEPT_SECONDS, max_entries=CACHE_ENTRIES)
#: Each role that a policy binds to a caller, with the kind and primary key of the resource. A page of the console asks
#: for some twenty permissions, and only the first question reads the policies.
_bound: ExpiringCache[Key, frozenset[tuple[str, int, str]]] = ExpiringCache(
    seconds=epoch.KEPT_SECONDS, max_entries=CACHE_ENTRIES
)


def forget_decisions() -> None:
    """Forget all decisions, because policies have changed in this process."""
    decisions.clear()
    _inherited.clear()
    _bound.clear()


def is_root(caller: Principal) -> bool:
    """Whether the caller may do everything.

    That is the service itself, a superuser or, in development, a caller without credentials.
    """
    return caller.is_superuser or (settings.DEVELOPMENT and caller.member == settings.ANONYMOUS != "")


def allowed(caller: Principal, permission: str, resource: tree.Resource) -> bool:
    """Whether the policies of the resource and of everything above it give `caller` the permission."""
    if is_root(caller):
        return True
    key = (caller.identity, permission, tree.kind_of(resource).word, str(resource.pk))
    answer = decisions.get(key)
    if answer is None:
        generation = decisions.generation
        answer = permission in permissions_held(caller, resource, among=[permission])
        decisions.put(key, answer, generation=generation)
    return answer


def require(caller: Principal, permission: str, resource: tree.Resource) -> None:
    """Raise PermissionDenied, naming the permission and the resource, unless `caller` holds it there."""
    if not allowed(caller, permission, resource):
        raise denied(permission, tree.name_of(resource))


def require_named(caller: Principal, permission: str, name: str, *, field: str) -> None:
    """Do as `require`, for a name in a request.

    If the resource doesn't exist, callers who hold the permission on the project around it may learn that.
    """
    if is_root(caller):
        return  # the service reports an invalid name
    resource = tree.resource_or_above(name, field=field)
    if resource is None or not allowed(caller, permission, resource):
        raise denied(permission, name, field=field)


def denied(permission: str, name: str, *, field: str = "") -> PermissionDenied:
    """Return the same error whether or not the resource exists, because the caller may not know."""
    return PermissionDenied(
        f"Permission '{permission}' denied on resource '{tree.full_name(name)}' (or it may not exist).",
        field=field,
        details=error_info(
            "IAM_PERMISSION_DENIED",
            domain="iam.googleapis.com",
            metadata={"permission": permission, "resource": name},
        ),
    )


def permissions_held(caller: Principal, resource: tree.Resource, *, among: Iterable[str]) -> set[str]:
    """Return the permissions of `among` that `caller` holds on the resource."""
    permissions = set(among)
    if is_root(caller):
        return permissions
    granted: set[str] = set()
    for role in roles_held(caller, resource):
        granted |= permissions & _permissions_of(role)
    return granted


def resources_granting(caller: Principal, permission: str) -> frozenset[tuple[str, int]]:
    """Return the kind and primary key of each resource whose own policy gives `caller` the permission.

    This reads every policy, so use it for lists of rows only. `allowed` answers for a single resource.
    """
    has_permission = cache(lambda role: permission in _permissions_of(role))
    return frozenset((kind, pk) for kind, pk, role in _roles_bound_anywhere(caller) if has_permission(role))


def _roles_bound_anywhere(caller: Principal) -> frozenset[tuple[str, int, str]]:
    """Return the roles that any policy binds to `caller`, each with the kind and primary key of the resource."""
    key = (caller.identity,)
    bound = _bound.get(key)
    if bound is None:
        generation = _bound.generation
        aliases = _members_of(caller, has_groups=True)
        bound = frozenset(
            (kind, pk, binding["role"])
            for kind, pk, bindings in Policy.objects.order_by().values_list("kind", "resource_pk", "bindings")
            for binding in bindings
            if not aliases.isdisjoint(binding["members"])
        )
        _bound.put(key, bound, generation=generation)
    return bound


def roles_held(caller: Principal, resource: tree.Resource) -> frozenset[str]:
    """Return the roles bound to `caller`, under any of its names, on the resource or above it."""
    above = tree.parent_of(resource)
    if above is None or tree.kind_of(resource).host == "cloudresourcemanager":
        return _roles_inherited(caller, resource)
    return _roles_bound(caller, [resource]) | _roles_inherited(caller, above)


def _roles_inherited(caller: Principal, resource: tree.Resource) -> frozenset[str]:
    key = (caller.identity, tree.kind_of(resource).word, str(resource.pk))
    roles = _inherited.get(key)
    if roles is None:
        generation = _inherited.generation
        roles = _roles_bound(caller, tree.lineage(resource))
        _inherited.put(key, roles, generation=generation)
    return roles


def _roles_bound(caller: Principal, resources: Iterable[tree.Resource]) -> frozenset[str]:
    """Return the roles that the policies of these resources alone bind to `caller`."""
    condition = Q()
    for resource in resources:
        condition |= Q(kind=tree.kind_of(resource).word, resource_pk=resource.pk)
    bindings = [binding for policy in Policy.objects.filter(condition).only("bindings") for binding in policy.bindings]
    has_groups = any(member.startswith("group:") for binding in bindings for member in binding["members"])
    aliases = _members_of(caller, has_groups=has_groups)
    return frozenset(binding["role"] for binding in bindings if not aliases.isdisjoint(binding["members"]))


def _members_of(caller: Principal, *, has_groups: bool) -> set[str]:
    """Return all members that stand for the caller. Groups are looked up only if a policy names one."""
    aliases = members.standing_for(caller.member, is_service_agent=caller.is_service_agent)
    new = aliases if has_groups else set()
    while new:
        rows = GroupMember.objects.filter(member__in=new).values_list("group__email", flat=True)
        new = {f"group:{email}" for email in rows} - aliases
        aliases = aliases | new
    return aliases


def _permissions_of(role: str) -> frozenset[str]:
    predefined = PREDEFINED.get(role)
    if predefined is not None:
        return predefined.permissions
    custom = find_role(role)
    return frozenset(custom.permissions) if custom is not None and not custom.deleted else frozenset()


def find_role(name: str) -> RoleResource | None:
    """Return the custom role of a full name: `projects/{id}/roles/{role}` or `organizations/{number}/roles/{role}`."""
    parts = name.split("/")
    if len(parts) != 4 or parts[2] != "roles":
        return None
    roles = RoleResource.objects.select_related("project", "organization").filter(role_id=parts[3])
    if parts[0] == "projects":
        return row_or_none(roles.filter(project__project_id=parts[1]))
    number = read_decimal(parts[1], most=names.LAST_NUMBER) if parts[0] == "organizations" else None
    return None if number is None else row_or_none(roles.filter(organization__number=number))
