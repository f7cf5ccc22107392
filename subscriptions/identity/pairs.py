"""RSA key pairs, and the certificates that carry their public halves."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime, timedelta

from pushhub.common.clock import utcnow
from subscriptions.identity.libraries import hashes, oid, rsa, serialization, x509

KEY_BITS = 2048
KEY_ID = re.compile(r"[0-9a-f]{40}", re.ASCII)


def key_id_of(key: rsa.RSAPublicKey) -> str:
    """Return forty hexadecimal digits, as Google's ids have. They depend on the key only."""
    public_bytes = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(public_bytes).hexdigest()[:40]


def is_key_id(key_id: object) -> bool:
    """Whether a key may have this id. Strangers send others, which a database may be unable to look up."""
    return isinstance(key_id, str) and KEY_ID.fullmatch(key_id) is not None


def certificate_of(private_key: rsa.RSAPrivateKey, common_name: str, *, until: datetime) -> str:
    """Return a self-signed certificate, the form in which Google serves its public keys."""
    name = x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(utcnow() - timedelta(days=1))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(private_key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def private_pem(private_key: rsa.RSAPrivateKey) -> str:
    """Return the key as PKCS#8 in PEM, unencrypted: for a key file, or to be encrypted as a whole."""
    return private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


def public_pem(key: rsa.RSAPublicKey) -> str:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
