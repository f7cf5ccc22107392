"""The console's login, which bounds how often a password may be guessed.

From one address, a name has a few attempts in each window, and from all addresses together some more. All names
together have a hundred from one address, so that one password can't be tried with every name. A browser in which
somebody has signed in keeps a cookie that says so. Attempts with the cookie are counted separately, so that guesses
from elsewhere lock a person out only of browsers in which they have never signed in.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from django.conf import settings
from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.core import signing
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from pushhub.common import throttle
from pushhub.common.peers import client_of

log = logging.getLogger(__name__)

#: Attempts in a window of the throttle: for a name from an address, from anywhere, for all names from an address (there
#: may be an office behind it), and for a name from a browser that it knows.
FROM_AN_ADDRESS = 5
FROM_ANYWHERE = 50
FOR_ALL_NAMES = 100
FROM_A_KNOWN_BROWSER = 10
COOKIE = "pushhub_browser"
COOKIE_SECONDS = 365 * 86400
SALT = "pushhub.browser"
THROTTLED = "throttled"


class LoginForm(AdminAuthenticationForm):
    """Asks the throttle before it checks the password."""

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username")
        if not name or not self.cleaned_data.get("password") or self.request is None:
            return super().clean()
        limits = limits_of(self.request, name)
        seconds = throttle.attempt(limits)
        if seconds:
            client = client_of(str(self.request.META["REMOTE_ADDR"]))
            log.warning("a login from %s was refused after too many wrong passwords", client)
            raise ValidationError(
                _("Too many wrong passwords. Minutes to wait: %(minutes)s."),
                code=THROTTLED,
                params={"minutes": -(-seconds // 60)},
            )
        cleaned = super().clean()
        # The counts of all addresses and of all names are kept: somebody else may be guessing.
        own = (counter for counter, limit in limits.items() if limit not in (FROM_ANYWHERE, FOR_ALL_NAMES))
        throttle.attempt_succeeded(own)
        return cleaned


def limits_of(request: HttpRequest, name: str) -> dict[str, int]:
    """Return the counters of an attempt, each with the number of attempts that it allows, in the order of asking."""
    browser = _known_browser(request, name)
    if browser:
        return {f"browser {browser}": FROM_A_KNOWN_BROWSER}
    address = client_of(str(request.META["REMOTE_ADDR"]))
    return {
        f"all names {address}": FOR_ALL_NAMES,
        f"address {address} {name}": FROM_AN_ADDRESS,
        f"name {name}": FROM_ANYWHERE,
    }


def remember_browser(request: HttpRequest, response: HttpResponse) -> None:
    """Set the cookie that tells the next login that this browser has signed in before."""
    name = request.user.get_username()
    value = signing.dumps({"browser": secrets.token_hex(16), "name": name}, salt=SALT)
    response.set_cookie(
        COOKIE,
        value,
        max_age=COOKIE_SECONDS,
        path="/admin/login/",
        secure=settings.SESSION_COOKIE_SECURE,
        httponly=True,
        samesite="Lax",
    )


def enter_emulator(request: HttpRequest) -> None:
    """Sign in as a superuser without a password: the emulator has no authentication, and nobody an account."""
    user, _created = User.objects.get_or_create(username="emulator", defaults={"is_staff": True, "is_superuser": True})
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])


def is_throttled(response: HttpResponse) -> bool:
    form = (getattr(response, "context_data", None) or {}).get("form")
    return form is not None and form.is_bound and form.has_error(NON_FIELD_ERRORS, THROTTLED)


def _known_browser(request: HttpRequest, name: str) -> str:
    """Return the browser's id if this name has signed in from it before, else ""."""
    try:
        said = signing.loads(request.COOKIES.get(COOKIE, ""), salt=SALT, max_age=COOKIE_SECONDS)
    except signing.BadSignature:
        return ""
    return str(said["browser"]) if said["name"] == name else ""
