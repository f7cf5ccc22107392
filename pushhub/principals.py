"""Who a caller is, in IAM's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """One member as IAM policies name it, for example `user:ada@example.com` or `serviceAccount:...`."""

    member: str

    @property
    def is_authenticated(self) -> bool:
        """Asked by Django REST framework of whatever stands for the user."""
        return True

    def __str__(self) -> str:
        return self.member
