"""Members of policies: how they are written, and who stands for whom. Pure."""

from __future__ import annotations

import re

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.names import is_agent_email

EVERYONE = frozenset({"allUsers", "allAuthenticatedUsers"})
MAIL_KINDS = ("user", "serviceAccount", "group")
#: A member of staff without an email address goes by the name they sign in with.
USER_PATTERN = re.compile(r"[^\s:/,]{1,320}")
#: Looser than mail itself: `developer@localhost` is somebody too.
MAIL_PATTERN = re.compile(r"[^\s@:/,]{1,200}@[^\s@:/,]{1,200}")
#: What a service account that was deleted is called in the policies that had it. It stays bound there until it is
#: undeleted or somebody takes it out, and stands for nobody who calls.
DELETED_PATTERN = re.compile(r"deleted:serviceAccount:[^\s@:/,?]{1,200}@[^\s@:/,?]{1,200}\?uid=\d{1,30}", re.ASCII)
#: Members that stand for nobody who calls PushHub. Policies keep them as they are written, for whoever reads them next.
FOREIGN_PATTERN = re.compile(
    r"(?:principal|principalSet)://[!-~]{1,380}"
    r"|(?:projectOwner|projectEditor|projectViewer):[a-z0-9.:-]{1,100}"
    r"|deleted:(?:user|group|serviceAccount|principal|principalSet):[!-~]{1,380}"
)
DOMAIN_PATTERN = re.compile(r"(?!-)[a-z0-9.-]{1,253}(?<!-)", re.ASCII)


def member_parse(member: str, *, field: str) -> str:
    """A member in canonical form: what is a mail address or a domain is lower-cased."""
    if member in EVERYONE:
        return member
    if DELETED_PATTERN.fullmatch(member) or FOREIGN_PATTERN.fullmatch(member):
        return member
    kind, colon, identifier = member.partition(":")
    identifier = identifier.lower()
    if colon and kind in MAIL_KINDS:
        if not (USER_PATTERN if kind == "user" else MAIL_PATTERN).fullmatch(identifier):
            raise InvalidArgument(
                f"Invalid member given (member={clipped(member)}): an email is expected.", field=field
            )
        return f"{kind}:{identifier}"
    if colon and kind == "domain":
        if not DOMAIN_PATTERN.fullmatch(identifier):
            raise InvalidArgument(
                f"Invalid member given (member={clipped(member)}): a domain is expected.", field=field
            )
        return f"domain:{identifier}"
    raise InvalidArgument(
        f"The member {clipped(member)} is of an unknown type. Please set a valid type prefix for the member: "
        "user:, serviceAccount:, group:, domain:, principal://, principalSet://, projectOwner:, projectEditor:, "
        "projectViewer: or deleted:, or give allUsers or allAuthenticatedUsers.",
        field=field,
    )


def deleted_account(email: str, *, unique_id: str) -> str:
    return f"deleted:serviceAccount:{email}?uid={unique_id}"


def standing_for(member: str, *, is_service_agent: bool = False) -> set[str]:
    """Every member, but for groups, that a policy may name `member` by.

    The address of a service agent stands for the agent, whoever else has it. That of a service account stands for the
    account which has it letter by letter.
    """
    kind, _, identifier = member.partition(":")
    if kind == "serviceAccount":
        return {member, *EVERYONE} if is_agent_email(identifier) == is_service_agent else set(EVERYONE)
    identifier = identifier.lower()
    found = {f"{kind}:{identifier}", *EVERYONE}
    _, at, domain = identifier.rpartition("@")
    if kind == "user" and at:  # a login name without an address is of no domain, even if it reads like one
        found.add(f"domain:{domain}")
    return found
