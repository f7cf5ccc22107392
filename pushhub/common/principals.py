"""Who a caller is, in IAM's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """One member as IAM policies name it, for example `user:ada@example.com` or `serviceAccount:...`."""

    member: str
    #: Holds every permission on everything whatever the policies say: set for a superuser's session, never by a token.
    is_superuser: bool = False
    #: Of a service account: another one may have its address later, and never this.
    unique_id: str = ""
    #: The service agent of a project. Policies name it as they name service accounts, but it has no row, no key and no
    #: token: only PushHub itself acts as one, and an account with the same address is somebody else.
    is_service_agent: bool = False

    @property
    def identity(self) -> str:
        """What tells this principal from every other, those of the same address included."""
        kind, _, address = self.member.partition(":")
        return f"{'serviceAgent' if self.is_service_agent else kind}:{self.unique_id or address}"

    @property
    def is_authenticated(self) -> bool:
        """Asked by Django REST framework of whatever stands for the user."""
        return True

    def __str__(self) -> str:
        return self.member


#: The service itself: management commands, scheduled tasks, tests. No credential leads to it.
OPERATOR = Principal("operator:pushhub", is_superuser=True)
