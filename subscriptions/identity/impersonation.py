"""IAM Credentials: tokens of a service account for callers that may impersonate it."""

from __future__ import annotations

from datetime import timedelta

from pushhub.common.errors import FailedPrecondition, InvalidArgument, Unimplemented
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.protojson import parse_duration
from subscriptions import selectors
from subscriptions.iam import access
from subscriptions.iam.roles import GET_OPEN_ID_TOKEN
from subscriptions.identity import access_tokens, tokens
from subscriptions.identity.access_tokens import IssuedToken
from subscriptions.identity.scopes import read_scopes
from subscriptions.models import ServiceAccount
from subscriptions.resources import fields

GET_ACCESS_TOKEN = "iam.serviceAccounts.getAccessToken"  # noqa: S105 - a permission
MAX_LIFETIME = timedelta(hours=12)


def generate_id_token(*, name: str, request: object, caller: Principal = OPERATOR) -> str:
    """Return an id token. `name` is the account's name, `request` a GenerateIdTokenRequest."""
    token_request = fields.GENERATE_ID_TOKEN.read(request)
    if not token_request.get("audience"):
        raise InvalidArgument("The audience must be set.", field="audience")
    if token_request.get("organizationNumberIncluded"):
        raise Unimplemented("Tokens without the organization's number only: leave organizationNumberIncluded out.")
    account = _impersonated(name, token_request.get("delegates", []), GET_OPEN_ID_TOKEN, caller)
    return tokens.sign_id_token(
        account,
        audience=token_request["audience"],
        include_email=token_request.get("includeEmail", False),
        azp_is_email=token_request.get("useEmailAzp", False),
    ).token


def generate_access_token(*, name: str, request: object, caller: Principal = OPERATOR) -> IssuedToken:
    """Return an access token. `name` is the account's name, `request` a GenerateAccessTokenRequest."""
    token_request = fields.GENERATE_ACCESS_TOKEN.read(request)
    scopes = read_scopes(" ".join(token_request.get("scope", [])))
    if not scopes:
        raise InvalidArgument("Give at least one scope.", field="scope")
    lifetime = timedelta(milliseconds=parse_duration(token_request.get("lifetime", "3600s"), field="lifetime"))
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        raise InvalidArgument("The lifetime must be above 0s and up to 43200s.", field="lifetime")
    account = _impersonated(name, token_request.get("delegates", []), GET_ACCESS_TOKEN, caller)
    return access_tokens.create_account_token(account=account, lifetime=lifetime, scopes=scopes)


def _impersonated(name: str, delegates: list[str], permission: str, caller: Principal) -> ServiceAccount:
    if delegates:
        raise Unimplemented("Delegation chains are not supported: grant the caller the role on the account itself.")
    account = selectors.get_service_account(name=name)
    access.require(caller, permission, account)
    if account.is_disabled:
        raise FailedPrecondition("The service account is disabled.")
    return account
