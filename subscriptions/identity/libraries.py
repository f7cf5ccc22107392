"""The libraries of keys and tokens. Few tests need them: the emulator imports each at its first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from django.conf import settings

__all__ = ["exceptions", "fernet", "hashes", "hkdf", "jwt", "oid", "rsa", "serialization", "x509"]


class Later:
    """A module that is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING or settings.EMULATOR == "OFF":
    import jwt
    from cryptography import exceptions, fernet, x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.kdf import hkdf
    from cryptography.x509 import oid
else:
    PRIMITIVES = "cryptography.hazmat.primitives"
    jwt, fernet, oid, x509 = map(Later, ("jwt", "cryptography.fernet", "cryptography.x509.oid", "cryptography.x509"))
    hashes, hkdf = Later(f"{PRIMITIVES}.hashes"), Later(f"{PRIMITIVES}.kdf.hkdf")
    exceptions = Later("cryptography.exceptions")
    rsa, serialization = Later(f"{PRIMITIVES}.asymmetric.rsa"), Later(f"{PRIMITIVES}.serialization")
