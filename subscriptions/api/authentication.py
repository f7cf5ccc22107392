"""Authentication of REST calls: a bearer token, a console session or, if the settings name one, an anonymous caller."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.identity.callers import caller_from_authorization


class CallerAuthentication(BaseAuthentication):
    """Sets `request.user` to the `Principal` of the caller."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is not None:
            # A request with credentials never falls back to the anonymous principal.
            return caller_from_authorization(header), None
        session = session_principal(request._request)
        if session is not None:
            refuse_forged(request._request)
            return session, None
        return (Principal(settings.ANONYMOUS), None) if settings.ANONYMOUS else None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="pushhub"'


class IsCaller(BasePermission):
    """Allows every caller that CallerAuthentication has identified."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, Principal)


def session_principal(request: HttpRequest) -> Principal | None:
    """Return the principal of a signed-in member of staff. Superusers may do everything, others what policies grant."""
    user: AbstractBaseUser | AnonymousUser = getattr(request, "user", AnonymousUser())
    if not user.is_active or not getattr(user, "is_staff", False):
        return None
    member = f"user:{getattr(user, 'email', '') or user.get_username()}".lower()  # as policies and tokens have it
    return Principal(member, is_superuser=bool(getattr(user, "is_superuser", False)))


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, called directly, because the middleware exempts views of Django REST framework."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise PermissionDenied(f"CSRF check failed: {reason}")


def refuse_forged(request: HttpRequest) -> None:
    """Check the CSRF token, because a browser sends the session's cookie with requests of any page."""
    check = _CsrfCheck(lambda _request: HttpResponse())
    check.process_request(request)
    check.process_view(request, lambda _request: HttpResponse(), (), {})
