"""The security headers of every HTML page, and who may read the documentation of the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", "ada@example.com", is_staff=True)


@pytest.fixture
def production(settings: Any) -> None:
    settings.DEVELOPMENT = False
    settings.ANONYMOUS = ""


@pytest.mark.parametrize("path", ["/docs", "/docs?script=", "/schema"])
def test_the_documentation_asks_for_a_login_in_production(ada: User, production: None, path: str) -> None:
    refused = Client().get(path)
    assert refused.status_code == 302
    assert refused.headers["Location"].startswith("/admin/login/?next=/")
    somebody = Client()
    somebody.force_login(User.objects.create_user("bob"))
    assert somebody.get(path).status_code == 302, "this user is not a member of staff"
    staff = Client()
    staff.force_login(ada)
    assert staff.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/admin/login/", "/admin/", "/admin/nothing", "/nothing"])
def test_every_page_has_a_strict_policy(ada: User, path: str) -> None:
    client = Client()
    if path != "/admin/login/":
        client.force_login(ada)
    policy = client.get(path).headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy and "*" not in policy and "http" not in policy
    assert ("'nonce-" in policy) == (path == "/docs"), "only pages with a style of their own need this"


def test_a_nonce_is_used_once(ada: User) -> None:
    seen = {Client().get("/docs").headers["Content-Security-Policy"] for _ in range(5)}
    assert len(seen) == 5


def test_answers_other_than_pages_have_no_policy() -> None:
    assert "Content-Security-Policy" not in Client().get("/healthz").headers
