"""Keys of service accounts (IAM v1): key pairs whose private half is handed out once, or uploaded public keys."""

from __future__ import annotations

import base64
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Unimplemented, clipped
from pushhub.common.rows import row_or_none
from subscriptions import selectors
from subscriptions.identity.keys import certificate_public_key
from subscriptions.identity.libraries import exceptions, rsa, x509
from subscriptions.identity.pairs import KEY_BITS, certificate_of, key_id_of, private_pem, public_pem
from subscriptions.identity.recent import forget_callers
from subscriptions.models import ServiceAccount
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.resources import fields

#: As at Google. It also bounds how many keys are tried for a token that doesn't name its key.
MAX_KEYS = 10
#: Google's expiry date for a key that is valid until it is deleted.
NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
WEAKEST_BITS = 2048
STRONGEST_BITS = 4096


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key. Its private half is visible only here, in Google's JSON key file."""

    row: ServiceAccountKey
    key_file: bytes

    def __repr__(self) -> str:
        return f"IssuedKey({self.row})"


def create_service_account_key(*, name: str, request: object) -> IssuedKey:
    """Create a key. `name` is the account's name, `request` a CreateServiceAccountKeyRequest."""
    key_request = fields.CREATE_SERVICE_ACCOUNT_KEY.read(request)
    if key_request.get("keyAlgorithm") == "KEY_ALG_RSA_1024":
        raise InvalidArgument("Keys of 1024 bits are no longer safe: ask for KEY_ALG_RSA_2048.", field="keyAlgorithm")
    if key_request.get("privateKeyType") == "TYPE_PKCS12_FILE":
        raise Unimplemented("Key files are in Google's JSON form only: ask for TYPE_GOOGLE_CREDENTIALS_FILE.")
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    account = selectors.get_service_account(name=name)
    key_id = key_id_of(private_key.public_key())
    certificate = certificate_of(private_key, account.unique_id, until=NEVER)
    row = _add(name, ServiceAccountKey(key_id=key_id, certificate=certificate, expires_at=NEVER))
    return IssuedKey(row, key_file(row, private_pem(private_key)))


def upload_service_account_key(*, name: str, request: object) -> ServiceAccountKey:
    """Store an uploaded public key. `request` is an UploadServiceAccountKeyRequest with a PEM certificate in base64."""
    upload = fields.UPLOAD_SERVICE_ACCOUNT_KEY.read(request)
    refused = InvalidArgument(
        f"Invalid public key: an X.509 certificate in PEM of an RSA key of {WEAKEST_BITS} to {STRONGEST_BITS} bits "
        "that is valid now is expected.",
        field="publicKeyData",
    )
    try:
        pem = base64.b64decode(upload.get("publicKeyData", ""), validate=True)
        certificate = x509.load_pem_x509_certificate(pem)
        key = certificate.public_key()
    except (ValueError, exceptions.UnsupportedAlgorithm):
        raise refused from None
    if not isinstance(key, rsa.RSAPublicKey) or not WEAKEST_BITS <= key.key_size <= STRONGEST_BITS:
        raise refused
    if not certificate.not_valid_before_utc <= utcnow() < certificate.not_valid_after_utc:
        raise refused
    row = ServiceAccountKey(
        key_id=key_id_of(key),
        certificate=pem.decode("ascii", "replace"),
        uploaded=True,
        expires_at=certificate.not_valid_after_utc,
    )
    return _add(name, row)


def get_service_account_key(*, name: str) -> ServiceAccountKey:
    account_name, _, key_id = name.partition("/keys/")
    account = selectors.get_service_account(name=account_name)
    key = row_or_none(account.keys.filter(key_id=key_id))
    if key is None:
        raise NotFound(f"Service account key {clipped(key_id)} does not exist.")
    return key


def service_account_keys_of(account: ServiceAccount, *, kinds: Collection[str] = ()) -> QuerySet[ServiceAccountKey]:
    """Return the keys of an account. In IAM's terms all of them are USER_MANAGED."""
    keys = account.keys.select_related("account__project")
    return keys if not kinds or "USER_MANAGED" in kinds else keys.none()


def public_key_data(key: ServiceAccountKey, *, form: str) -> str:
    """Return the public half in base64, in the form that a GetServiceAccountKeyRequest asks for."""
    if form in ("", "TYPE_NONE"):
        return ""
    if form == "TYPE_X509_PEM_FILE":
        return base64.b64encode(key.certificate.encode()).decode()
    if form != "TYPE_RAW_PUBLIC_KEY":
        raise InvalidArgument(f"Invalid value: {clipped(form)}", field="publicKeyType")
    return base64.b64encode(public_pem(certificate_public_key(key.certificate)).encode()).decode()


def certificates_of(email: str) -> dict[str, str]:
    """Return the certificates of an account's keys in use, by key id. They are public."""
    keys = ServiceAccountKey.objects.filter(
        account__email=email, account__deleted_at=None, account__disabled=False, disabled=False, expires_at__gt=utcnow()
    )
    return {} if names.is_agent_email(email) else dict(keys.values_list("key_id", "certificate"))


def delete_service_account_key(*, name: str) -> None:
    """Delete a key, and with it the access tokens that it was exchanged for."""
    get_service_account_key(name=name).delete()
    forget_callers()


def disable_service_account_key(*, name: str) -> None:
    """Disable a key: its signatures aren't accepted until it is enabled again."""
    _set_disabled(name, True)


def enable_service_account_key(*, name: str) -> None:
    """Enable a key again."""
    _set_disabled(name, False)


def _set_disabled(name: str, disabled: bool) -> None:
    with transaction.atomic():
        key = get_service_account_key(name=name)
        key.disabled = disabled
        key.save(update_fields=["disabled"])
    forget_callers()


def key_file(row: ServiceAccountKey, private_key: str) -> bytes:
    """Return the key file that google-auth reads. Its URLs lead to this PushHub."""
    account, public_url = row.account, settings.PUBLIC_URL
    content: dict[str, Any] = {
        "type": "service_account",
        "project_id": account.project.project_id,
        "private_key_id": row.key_id,
        "private_key": private_key,
        "client_email": account.email,
        "client_id": account.unique_id,
        "auth_uri": f"{public_url}/o/oauth2/auth",
        "token_uri": f"{public_url}/token",
        "auth_provider_x509_cert_url": f"{public_url}/oauth2/v1/certs",
        "client_x509_cert_url": f"{public_url}/robot/v1/metadata/x509/{quote(account.email, safe='')}",
        # A name, not a location: clients refuse credentials of another universe than their own.
        "universe_domain": "googleapis.com",
    }
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def _add(name: str, row: ServiceAccountKey) -> ServiceAccountKey:
    with transaction.atomic():
        row.account = selectors.get_service_account(name=name, lock=True)
        if names.is_agent_email(row.account.email):
            raise FailedPrecondition("A service agent has no keys.")
        if row.account.keys.count() >= MAX_KEYS:
            raise FailedPrecondition(f"A service account has {MAX_KEYS} keys at most: delete one that is not in use.")
        if ServiceAccountKey.objects.filter(key_id=row.key_id).exists():
            raise AlreadyExists("The key belongs to a service account already.")
        row.save(force_insert=True)
    return row
