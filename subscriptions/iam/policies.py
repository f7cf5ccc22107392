"""Policies as values: reading, normalising and bounding them. Pure (docs/spec-access.md#policies)."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any

from pushhub.common.errors import Aborted, InvalidArgument, clipped
from pushhub.common.protojson import parse_bytes
from subscriptions.iam.members import parse_member
from subscriptions.iam.roles import BASIC_ROLES, PREDEFINED

#: The etag of a policy that was never set.
UNSET_ETAG = "ACAB"
CONFLICT = "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
VERSIONS = (0, 1, 3)
#: Each occurrence of a member counts.
MAX_PRINCIPALS = 1500
MAX_GROUPS = 250
ETAG_BYTES = 8
#: Projects created later need no grant for their service agent (docs/spec-delivery.md#push-token-preconditions).
LAST_DAY_OF_EXPLICIT_GRANTS = date(2021, 4, 8)

PUBSUB_KINDS = frozenset({"topic", "subscription", "snapshot", "schema"})

Binding = dict[str, Any]


def next_generation(previous: int, *, now_us: int) -> int:
    """Return a generation that is larger than all before, even if the resource was deleted and created again."""
    return max(previous + 1, now_us)


def format_etag(generation: int) -> str:
    """Return the etag of a generation. A stored policy has one above 0; 0 stands for a policy that was never set."""
    return base64.b64encode(generation.to_bytes(ETAG_BYTES, "big")).decode() if generation else UNSET_ETAG


def check_etag(etag: str, generation: int) -> None:
    """Raise Aborted if the etag isn't that of the current policy. Without an etag the last write wins."""
    if etag and parse_bytes(etag, field="policy.etag") != parse_bytes(format_etag(generation), field="policy.etag"):
        raise Aborted(CONFLICT)


def check_version(version: int, *, field: str) -> None:
    if version not in VERSIONS:
        raise InvalidArgument(f"Invalid policy version given (version={version}). It must be 0, 1 or 3.", field=field)


def normalise_bindings(bindings: Iterable[Mapping[str, Any]], *, kind: str) -> list[Binding]:
    """Return one binding per role, in the order of the request, each member once, without roles that have no member."""
    merged: dict[str, dict[str, None]] = {}
    for position, binding in enumerate(bindings):
        field = f"policy.bindings[{position}]"
        role = binding.get("role", "")
        _check_condition(binding, kind=kind, field=field)
        check_role(role, kind=kind, field=f"{field}.role")
        members = merged.setdefault(role, {})
        for index, member in enumerate(binding.get("members", [])):
            members[parse_member(member, field=f"{field}.members[{index}]")] = None
    result = [{"role": role, "members": list(members)} for role, members in merged.items() if members]
    _check_size(result)
    return result


def add_bindings(bindings: Iterable[Binding], *, role: str, member: str) -> list[Binding]:
    """Return the bindings with one more: `member` holds `role`."""
    result = [dict(binding) for binding in bindings]
    for binding in result:
        if binding["role"] == role:
            if member not in binding["members"]:
                binding["members"] = [*binding["members"], member]
            return result
    return [*result, {"role": role, "members": [member]}]


def remove_bindings(bindings: Iterable[Binding], *, member: str, role: str = "") -> list[Binding]:
    """Return the bindings after `member` has lost `role`, or else all its roles."""
    result = []
    for binding in bindings:
        keeps_role = role not in ("", binding["role"])
        remaining = [bound for bound in binding["members"] if bound != member or keeps_role]
        if remaining:
            result.append({**binding, "members": remaining})
    return result


def replace_members(bindings: Iterable[Binding], *, old: str, new: str) -> list[Binding]:
    """Return the bindings with one member renamed."""
    return [
        {**binding, "members": list(dict.fromkeys(new if bound == old else bound for bound in binding["members"]))}
        for binding in bindings
    ]


def members_of(bindings: Iterable[Binding]) -> set[str]:
    return {member for binding in bindings for member in binding["members"]}


def check_role(role: str, *, kind: str, field: str) -> None:
    """Raise InvalidArgument unless the role may be bound on this kind of resource. Custom roles aren't looked up."""
    if is_custom(role):
        return
    if role not in PREDEFINED:
        raise InvalidArgument(
            f"Role {clipped(role) or '(empty)'} does not exist in the resource's hierarchy.", field=field
        )
    if not is_supported(role, kind):
        raise InvalidArgument(f"Role {role} is not supported for this resource.", field=field)


def is_custom(role: str) -> bool:
    parts = role.split("/")
    return len(parts) == 4 and parts[0] in ("projects", "organizations") and parts[2] == "roles" and all(parts)


def is_supported(role: str, kind: str) -> bool:
    """Whether a predefined role may be bound on this kind of resource."""
    if role in BASIC_ROLES:
        return True
    if kind in PUBSUB_KINDS:
        # A publisher publishes to topics, so this role has no meaning on anything below a topic.
        is_publisher_below = role == "roles/pubsub.publisher" and kind != "topic"
        return role.startswith("roles/pubsub.") and not is_publisher_below
    return role.startswith("roles/iam.") if kind == "serviceAccount" else True


def _check_condition(binding: Mapping[str, Any], *, kind: str, field: str) -> None:
    if "condition" not in binding:
        return
    text = "Can't set conditional policy on this resource"
    if kind not in PUBSUB_KINDS:
        text += ": PushHub has no conditions, and to leave one out would grant more than was meant"
    raise InvalidArgument(f"{text}.", field=f"{field}.condition")


def _check_size(bindings: list[Binding]) -> None:
    members = [member for binding in bindings for member in binding["members"]]
    groups = sum(member.startswith("group:") for member in members)
    for noun, count, limit in (("principals", len(members), MAX_PRINCIPALS), ("groups", groups, MAX_GROUPS)):
        if count > limit:
            raise InvalidArgument(
                f"The policy has too many {noun}. You passed {count} in the request, but the maximum value is {limit}.",
                field="policy.bindings",
            )


def is_automatic_agent(created_at: datetime) -> bool:
    """Whether the service agent of a project created at this time mints tokens without a grant by the owner."""
    return created_at.date() > LAST_DAY_OF_EXPLICIT_GRANTS
