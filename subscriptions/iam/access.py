"""May this caller do that? The union of what the policies grant, from the resource up to its organization."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable
from functools import cache
from typing import Generic, TypeVar

from django.conf import settings
from django.db.models import Q

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.iam import members, tree
from subscriptions.iam.roles import PREDEFINED
from subscriptions.models.iam import GroupMember, Policy, RoleResource

#: How long a process may go by an answer that another process has changed meanwhile.
CACHE_SECONDS = 1.0
#: Enough for every pair of caller and topic that is busy within a second.
CACHE_ENTRIES = 20_000

Key = tuple[str, ...]


Answer = TypeVar("Answer", bound=Hashable)


class Decisions(Generic[Answer]):
    """Answers that are good for a second, so that the hundredth publish of a second asks the database nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Key, tuple[float, Answer]] = {}

    def get(self, key: Key) -> Answer | None:
        found = self._known.get(key)
        return found[1] if found is not None and found[0] > time.monotonic() else None

    def put(self, key: Key, answer: Answer) -> None:
        with self._lock:
            if len(self._known) >= CACHE_ENTRIES:
                self._known.clear()
            self._known[key] = (time.monotonic() + CACHE_SECONDS, answer)

    def forget(self) -> None:
        """Policies changed in this process: its next answers are new ones at once."""
        with self._lock:
            self._known.clear()


decisions: Decisions[bool] = Decisions()
#: The roles that a caller holds on a project or above: what its many topics have in common.
_inherited: Decisions[frozenset[str]] = Decisions()
#: The resources that a caller's permissions come from, by kind and primary key.
_granting: Decisions[frozenset[tuple[str, int]]] = Decisions()


def forget_decisions() -> None:
    decisions.forget()
    _inherited.forget()
    _granting.forget()


def is_root(caller: Principal) -> bool:
    """Who may do everything: the service itself, superusers and, in development, the caller without credentials."""
    return caller.is_superuser or (settings.DEVELOPMENT and caller.member == settings.ANONYMOUS != "")


def allowed(caller: Principal, permission: str, resource: tree.Resource) -> bool:
    """Whether the policies of the resource and of what lies above it give `caller` the permission."""
    if is_root(caller):
        return True
    key = (caller.identity, permission, tree.kind_of(resource).word, str(resource.pk))
    answer = decisions.get(key)
    if answer is None:
        answer = permission in permissions_held(caller, resource, among=[permission])
        decisions.put(key, answer)
    return answer


def require(caller: Principal, permission: str, resource: tree.Resource) -> None:
    """Raise PermissionDenied, naming the permission and the resource, unless `caller` holds it there."""
    if not allowed(caller, permission, resource):
        raise denied(permission, tree.name_of(resource))


def require_named(caller: Principal, permission: str, name: str, *, field: str) -> None:
    """As `require`, on what a request names. That it doesn't exist is told to those who hold the permission above."""
    if is_root(caller):
        return  # what is wrong with the name is for the service to say
    resource = tree.resource_or_above(name, field=field)
    if resource is None or not allowed(caller, permission, resource):
        raise denied(permission, name)


def denied(permission: str, name: str) -> PermissionDenied:
    """The same for a resource that exists and for one that doesn't, as the caller may know neither."""
    return PermissionDenied(
        f"Permission '{permission}' denied on resource '{tree.full_name(name)}' (or it may not exist).",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "IAM_PERMISSION_DENIED",
                "domain": "iam.googleapis.com",
                "metadata": {"permission": permission, "resource": name},
            }
        ],
    )


def permissions_held(caller: Principal, resource: tree.Resource, *, among: Iterable[str]) -> set[str]:
    """Those of the permissions that `caller` holds on the resource."""
    wanted = set(among)
    if is_root(caller):
        return wanted
    held: set[str] = set()
    for role in roles_held(caller, resource):
        held |= wanted & _permissions_of(role)
    return held


def resources_granting(caller: Principal, permission: str) -> frozenset[tuple[str, int]]:
    """The kind and primary key of each resource whose own policy gives `caller` the permission.

    This reads every policy, so it is for lists of rows; `allowed` answers for a single resource.
    """
    key = (caller.identity, permission)
    granting = _granting.get(key)
    if granting is None:
        mine = _names_of(caller, has_groups=True)
        has_permission = cache(lambda role: permission in _permissions_of(role))
        granting = frozenset(
            (kind, pk)
            for kind, pk, bindings in Policy.objects.order_by().values_list("kind", "resource_pk", "bindings")
            if any(not mine.isdisjoint(one["members"]) and has_permission(one["role"]) for one in bindings)
        )
        _granting.put(key, granting)
    return granting


def roles_held(caller: Principal, resource: tree.Resource) -> frozenset[str]:
    """The roles bound to `caller`, by whatever name of it, on the resource or above."""
    above = tree.parent_of(resource)
    if above is None or tree.kind_of(resource).host == "cloudresourcemanager":
        return _roles_inherited(caller, resource)
    return _roles_bound(caller, [resource]) | _roles_inherited(caller, above)


def _roles_inherited(caller: Principal, resource: tree.Resource) -> frozenset[str]:
    key = (caller.identity, tree.kind_of(resource).word, str(resource.pk))
    roles = _inherited.get(key)
    if roles is None:
        roles = _roles_bound(caller, tree.lineage(resource))
        _inherited.put(key, roles)
    return roles


def _roles_bound(caller: Principal, resources: Iterable[tree.Resource]) -> frozenset[str]:
    """The roles that the policies of just these resources bind to `caller`."""
    wanted = Q()
    for resource in resources:
        wanted |= Q(kind=tree.kind_of(resource).word, resource_pk=resource.pk)
    bindings = [binding for policy in Policy.objects.filter(wanted).only("bindings") for binding in policy.bindings]
    has_groups = any(member.startswith("group:") for binding in bindings for member in binding["members"])
    mine = _names_of(caller, has_groups=has_groups)
    return frozenset(binding["role"] for binding in bindings if not mine.isdisjoint(binding["members"]))


def _names_of(caller: Principal, *, has_groups: bool) -> set[str]:
    """All the members that stand for the caller. Groups are looked up only where a policy has one."""
    mine = members.standing_for(caller.member, is_service_agent=caller.is_service_agent)
    new = mine if has_groups else set()
    while new:
        rows = GroupMember.objects.filter(member__in=new).values_list("group__email", flat=True)
        new = {f"group:{email}" for email in rows} - mine
        mine = mine | new
    return mine


def _permissions_of(role: str) -> frozenset[str]:
    predefined = PREDEFINED.get(role)
    if predefined is not None:
        return predefined.permissions
    custom = role_find(role)
    return frozenset(custom.permissions) if custom is not None and not custom.deleted else frozenset()


def role_find(name: str) -> RoleResource | None:
    """The custom role of a full name, `projects/{id}/roles/{role}` or `organizations/{number}/roles/{role}`."""
    parts = name.split("/")
    if len(parts) != 4 or parts[2] != "roles":
        return None
    roles = RoleResource.objects.select_related("project", "organization").filter(role_id=parts[3])
    if parts[0] == "projects":
        return roles.filter(project__project_id=parts[1]).first()
    if parts[0] == "organizations" and parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) < 19:
        return roles.filter(organization__number=int(parts[1])).first()
    return None
