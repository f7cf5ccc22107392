"""Callers in the terms of IAM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A member as IAM policies name it, for example `user:ada@example.com` or `serviceAccount:...`."""

    member: str
    #: Whether it holds every permission on everything. True for a superuser's session, never for a token.
    is_superuser: bool = False
    #: The unique id of a service account. Another account may get its address later, but never its id.
    unique_id: str = ""
    #: Whether it is the service agent of a project. Policies name it like a service account, but it has no row, key or
    #: token: only PushHub itself acts as one, and an account with the same address is a different principal.
    is_service_agent: bool = False

    @property
    def identity(self) -> str:
        """A key that distinguishes this principal from all others, even from those with the same address."""
        kind, _, address = self.member.partition(":")
        return f"{'serviceAgent' if self.is_service_agent else kind}:{self.unique_id or address}"

    @property
    def is_authenticated(self) -> bool:
        """Django REST framework asks this of the user object."""
        return True

    def __str__(self) -> str:
        return self.member


#: The service itself: management commands, scheduled tasks, tests. No credential stands for it.
OPERATOR = Principal("operator:pushhub", is_superuser=True)
