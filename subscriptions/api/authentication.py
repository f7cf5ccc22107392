"""Who is calling: the bearer of a token, an admin session or, where the settings name one, nobody in particular."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from rest_framework.authentication import BaseAuthentication
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.identity.callers import bearer_token, caller_from_authorization, is_emulator_token


class CallerAuthentication(BaseAuthentication):
    """Gives each request its `Principal`, as `request.user`."""

    def authenticate(self, request: Request) -> tuple[Principal, None] | None:
        header = request.META.get("HTTP_AUTHORIZATION")
        if header is not None:
            # Somebody who means to be somebody is never taken for the anonymous caller.
            caller = caller_from_authorization(header)
            if is_emulator_token(bearer_token(header)):
                refuse_other_sites(request._request)
            return caller, None
        session = session_principal(request._request)
        if session is not None:
            refuse_forged(request._request)
            return session, None
        if settings.ANONYMOUS:
            refuse_other_sites(request._request)
            return Principal(settings.ANONYMOUS), None
        return None

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="pushhub"'


class IsCaller(BasePermission):
    """Lets in whoever CallerAuthentication knows."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        return isinstance(request.user, Principal)


def session_principal(request: HttpRequest) -> Principal | None:
    """A signed-in member of staff, or nobody. Superusers may do everything, others what policies grant them."""
    user: AbstractBaseUser | AnonymousUser = getattr(request, "user", AnonymousUser())
    if not user.is_active or not getattr(user, "is_staff", False):
        return None
    member = f"user:{getattr(user, 'email', '') or user.get_username()}"
    return Principal(member, is_superuser=bool(getattr(user, "is_superuser", False)))


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, asked directly: views of Django REST framework are exempt from the middleware."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise PermissionDenied(f"CSRF check failed: {reason}")


def refuse_forged(request: HttpRequest) -> None:
    """A browser sends the session's cookie for any page's request, so the request must prove to be ours."""
    check = _CsrfCheck(lambda _request: HttpResponse())
    check.process_request(request)
    check.process_view(request, lambda _request: HttpResponse(), (), {})


def refuse_other_sites(request: HttpRequest) -> None:
    """A page of another site must not act as the anonymous caller through its visitor's browser."""
    if request.method in SAFE_METHODS:
        return  # the browser doesn't show that page the answer
    origin = request.headers.get("Origin")
    if origin and urlsplit(origin).netloc != request.get_host():
        raise PermissionDenied("Requests from pages of other sites are refused.")
    if request.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise PermissionDenied("Requests from pages of other sites are refused.")
