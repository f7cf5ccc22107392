"""What a receiver needs to verify a push token, in the forms of Google's own URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.errors import InvalidArgument
from subscriptions.api.base import PublicView
from subscriptions.api.openapi import EMPTY, OAUTH_OBJECT
from subscriptions.api.routes import serve
from subscriptions.identity import keys, tokens
from subscriptions.identity.exchange import GRANT_TYPE
from subscriptions.identity.libraries import jwt
from subscriptions.identity.rotation import CERTS_MAX_AGE_SECONDS

TAG = "tokens"
TOKEN = OpenApiParameter("id_token", str, required=True)


@serve("GET", "oauth2/v1/certs", "", operation_id="certs_v1", tag=TAG, base=PublicView)
def list_pem_certificates() -> Response:
    """Return X.509 certificates by key id."""
    return _cached({key.kid: key.certificate for key in keys.published_keys()})


@serve("GET", "oauth2/v3/certs", "", operation_id="certs_v3", tag=TAG, base=PublicView)
def list_jwk_certificates() -> Response:
    """Return the same keys as a JWK set."""
    return _cached({"keys": [_jwk(key.kid, key.certificate) for key in keys.published_keys()]})


@serve(
    "GET", "tokeninfo", "", operation_id="tokeninfo", tag=TAG, parameters=[TOKEN], gives=OAUTH_OBJECT, base=PublicView
)
def get_token_info(query: Mapping[str, str]) -> Response:
    """Return the claims of a valid token, as text. For receivers that don't verify tokens themselves."""
    try:
        claims = tokens.id_token_claims(query.get("id_token", ""))
    except InvalidArgument as error:
        return uncached({"error": "invalid_token", "error_description": error.message}, status=400)
    return uncached({name: _text(value) for name, value in claims.items()})


class OpenidConfiguration(PublicView):
    """OpenID Connect discovery."""

    @extend_schema(operation_id="openid_configuration", tags=[TAG], responses=EMPTY)
    def get(self, request: Request) -> Response:
        return _cached(
            {
                "issuer": settings.ISSUER,
                "token_endpoint": f"{settings.PUBLIC_URL}/token",
                "revocation_endpoint": f"{settings.PUBLIC_URL}/revoke",
                "grant_types_supported": [GRANT_TYPE],
                "jwks_uri": f"{settings.PUBLIC_URL}/oauth2/v3/certs",
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
                "scopes_supported": ["openid", "email"],
                "claims_supported": ["aud", "azp", "email", "email_verified", "exp", "iat", "iss", "sub"],
            }
        )


def _jwk(kid: str, certificate: str) -> dict[str, Any]:
    jwk = jwt.algorithms.RSAAlgorithm.to_jwk(keys.certificate_public_key(certificate), as_dict=True)
    return {"kty": "RSA", "alg": "RS256", "use": "sig", "kid": kid, "n": jwk["n"], "e": jwk["e"]}


def _text(claim: object) -> str:
    return str(claim).lower() if isinstance(claim, bool) else str(claim)


def _cached(data: object) -> Response:
    return Response(data, headers={"Cache-Control": f"public, max-age={CERTS_MAX_AGE_SECONDS}, must-revalidate"})


def uncached(data: object, *, status: int = 200) -> Response:
    return Response(data, status=status, headers={"Cache-Control": "no-store", "Pragma": "no-cache"})
