"""Members of policies: how they are written, and which members stand for a caller. Pure."""

from __future__ import annotations

import re

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.names import is_agent_email

EVERYONE = frozenset({"allUsers", "allAuthenticatedUsers"})
#: A console user without an email address is named by their login.
USER_PATTERN = re.compile(r"[^\s:/,]{1,320}")
#: More permissive than email itself, because `developer@localhost` is a valid member.
MAIL_PATTERN = re.compile(r"[^\s@:/,]{1,200}@[^\s@:/,]{1,200}")
#: How policies name a service account after its deletion. The member stays bound until the account is undeleted or
#: somebody removes it, and stands for no caller.
DELETED_PATTERN = re.compile(r"deleted:serviceAccount:[^\s@:/,?]{1,200}@[^\s@:/,?]{1,200}\?uid=\d{1,30}", re.ASCII)
#: Members that stand for no caller of PushHub. Policies keep them as they are written.
FOREIGN_PATTERN = re.compile(
    r"(?:principal|principalSet)://[!-~]{1,380}"
    r"|(?:projectOwner|projectEditor|projectViewer):[a-z0-9.:-]{1,100}"
    r"|deleted:(?:user|group|serviceAccount|principal|principalSet):[!-~]{1,380}"
)
DOMAIN_PATTERN = re.compile(r"(?!-)[a-z0-9.-]{1,253}(?<!-)", re.ASCII)
#: What comes after each other kind of member, and what errors call it.
FORMS = {
    "user": (USER_PATTERN, "an email"),
    "serviceAccount": (MAIL_PATTERN, "an email"),
    "group": (MAIL_PATTERN, "an email"),
    "domain": (DOMAIN_PATTERN, "a domain"),
}


def parse_member(member: str, *, field: str) -> str:
    """Return a member in canonical form, with email addresses and domains in lower case."""
    if member in EVERYONE or is_foreign(member):
        return member
    kind, colon, identifier = member.partition(":")
    if not colon or kind not in FORMS:
        raise InvalidArgument(
            f"The member {clipped(member)} is of an unknown type. Please set a valid type prefix for the member: "
            "user:, serviceAccount:, group:, domain:, principal://, principalSet://, projectOwner:, projectEditor:, "
            "projectViewer: or deleted:, or give allUsers or allAuthenticatedUsers.",
            field=field,
        )
    pattern, wanted = FORMS[kind]
    if not pattern.fullmatch(identifier.lower()):
        raise InvalidArgument(f"Invalid member given (member={clipped(member)}): {wanted} is expected.", field=field)
    return f"{kind}:{identifier.lower()}"


def is_foreign(member: str) -> bool:
    """Whether the member is of a kind that stands for no caller of PushHub."""
    return bool(DELETED_PATTERN.fullmatch(member) or FOREIGN_PATTERN.fullmatch(member))


def deleted_account(email: str, *, unique_id: str) -> str:
    return f"deleted:serviceAccount:{email}?uid={unique_id}"


def standing_for(member: str, *, is_service_agent: bool = False) -> set[str]:
    """Return every member, except groups, by which a policy may name `member`.

    The address of a service agent stands for the agent only, even if an account has the same address. The address of
    a service account is compared case-sensitively.
    """
    kind, _, identifier = member.partition(":")
    if kind == "serviceAccount":
        return {member, *EVERYONE} if is_agent_email(identifier) == is_service_agent else set(EVERYONE)
    identifier = identifier.lower()
    members = {f"{kind}:{identifier}", *EVERYONE}
    _, at, domain = identifier.rpartition("@")
    if kind == "user" and at:  # a login without an address has no domain, even if it looks like one
        members.add(f"domain:{domain}")
    return members
