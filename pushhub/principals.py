"""Who a caller is, in IAM's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """One member as IAM policies name it, for example `user:ada@example.com` or `serviceAccount:...`."""

    member: str
    #: Holds every permission on everything whatever the policies say: set for a superuser's session, never by a token.
    is_superuser: bool = False

    @property
    def is_authenticated(self) -> bool:
        """Asked by Django REST framework of whatever stands for the user."""
        return True

    def __str__(self) -> str:
        return self.member


#: The service itself: management commands, scheduled tasks, tests. No credential leads to it.
OPERATOR = Principal("operator:pushhub", is_superuser=True)
