"""The RSA keys that sign push tokens: created on first use, encrypted at rest, public halves served to verifiers."""

from __future__ import annotations

import base64
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from pushhub.common.clock import utcnow
from pushhub.common.errors import Internal
from subscriptions.identity.libraries import fernet, hashes, hkdf, rsa, serialization, x509
from subscriptions.identity.pairs import KEY_BITS, certificate_of, key_id_of, private_pem
from subscriptions.models.iam import SigningKey

#: Verifiers take the key from the certificate and rarely check its dates, so it only has to outlive the key.
CERTIFICATE_LIFETIME = timedelta(days=3650)
#: The prefix of an encrypted key, so that another scheme can be added later.
ENCRYPTION_SCHEME = "fernet1:"
#: If two processes create a key at the same time, the second reads the key of the first.
TRIES = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signer:
    """A decrypted key."""

    kid: str
    private_key: rsa.RSAPrivateKey


def signing_key() -> Signer:
    """Return the newest key that signs by now and that this process can decrypt. Creates one if there is none.

    A key that signs only later, which verifiers may not know yet, is better than a new key, which none of them knows.
    """
    for _ in range(TRIES):
        now = utcnow()
        for row in sorted(keys_in_force(), key=lambda row: row.signs_from > now):
            signer = _usable(row)
            if signer is not None:
                return signer
        make_key(signs_from=now)
    raise Internal("No signing key could be created.")


def published_keys() -> list[SigningKey]:
    """Return the keys that verifiers should know. There is always at least one, because verifiers cache the answer."""
    signing_key()
    return list(keys_in_force())


def keys_in_force() -> QuerySet[SigningKey]:
    """Return the keys that aren't retired, newest first."""
    return SigningKey.objects.filter(retired_at=None).order_by("-generation")


@lru_cache(maxsize=256)
def certificate_public_key(certificate: str) -> rsa.RSAPublicKey:
    key = x509.load_pem_x509_certificate(certificate.encode()).public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise Internal("The certificate does not hold an RSA key.")
    return key


def make_key(*, signs_from: datetime) -> None:
    """Create the next key, unless another process creates it at the same time."""
    generation = (SigningKey.objects.order_by("-generation").values_list("generation", flat=True).first() or 0) + 1
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    row = SigningKey(
        generation=generation,
        kid=key_id_of(private_key.public_key()),
        certificate=certificate_of(private_key, "pushhub-token-signer", until=utcnow() + CERTIFICATE_LIFETIME),
        private_key=_encrypted(private_key),
        signs_from=signs_from,
    )
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError:
        return  # another process created this generation; signing_key() reads it
    logger.info("created signing key %s", row.kid)


def resealed(row: SigningKey) -> str | None:
    """Return the private key encrypted with the current secret; None if it is already, or if it can't be decrypted."""
    try:
        _decrypted(row.private_key, _secrets()[0])
    except fernet.InvalidToken:
        signer = _usable(row)
        return None if signer is None else _encrypted(signer.private_key)
    return None


def _usable(row: SigningKey) -> Signer | None:
    """Return the decrypted key; None if it was encrypted with a secret that this process doesn't have."""
    for secret in _secrets():
        try:
            return Signer(row.kid, _decrypted(row.private_key, secret))
        except fernet.InvalidToken:
            continue
    logger.error(
        "signing key %s cannot be decrypted: PUSHHUB_KEY_ENCRYPTION_KEY (or PUSHHUB_SECRET_KEY) has changed", row.kid
    )
    return None


def _secrets() -> list[str]:
    """Return the secrets that decrypt keys. The first one also encrypts."""
    return [secret for secret in (settings.KEY_ENCRYPTION_KEY, settings.KEY_ENCRYPTION_KEY_PREVIOUS) if secret]


@lru_cache(maxsize=4)
def _fernet(secret: str) -> fernet.Fernet:
    derived = hkdf.HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=b"pushhub signing keys").derive(
        secret.encode()
    )
    return fernet.Fernet(base64.urlsafe_b64encode(derived))


def _encrypted(private_key: rsa.RSAPrivateKey) -> str:
    return ENCRYPTION_SCHEME + _fernet(_secrets()[0]).encrypt(private_pem(private_key).encode()).decode()


@lru_cache(maxsize=8)
def _decrypted(stored: str, secret: str) -> rsa.RSAPrivateKey:
    """Decrypt a key. Its numbers aren't checked again, which takes 60 ms: Fernet proves that PushHub wrote them."""
    plain = _fernet(secret).decrypt(stored.removeprefix(ENCRYPTION_SCHEME).encode())
    key = serialization.load_pem_private_key(plain, password=None, unsafe_skip_rsa_key_validation=True)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise Internal("The signing key is not an RSA key.")
    return key
