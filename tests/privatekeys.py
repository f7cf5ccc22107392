"""RSA keys for tests. A new key costs 50 to 100 ms of CPU, so tests share the same keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key


@cache
def loaded_key(pem: str) -> rsa.RSAPrivateKey:
    """Return the key of a PEM text. Loading checks the key, which costs as much as a new key, so results are cached."""
    key = load_pem_private_key(pem.encode(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key


class PrivateKeys:
    """Hands out a different key at each call, and the same keys again after `begin_again`."""

    def __init__(self, generate: Callable[..., Any]) -> None:
        self._generate = generate
        self._keys: dict[int, list[Any]] = {}
        self._handed_out: dict[int, int] = {}
        self._lock = threading.Lock()

    def __call__(self, *, public_exponent: int, key_size: int) -> Any:
        with self._lock:
            keys = self._keys.setdefault(key_size, [])
            position = self._handed_out.get(key_size, 0)
            if position == len(keys):
                keys.append(self._generate(public_exponent=public_exponent, key_size=key_size))
            self._handed_out[key_size] = position + 1
            return keys[position]

    def begin_again(self) -> None:
        with self._lock:
            self._handed_out.clear()
