"""A caller of the REST API in the test's own process, and the fixtures that several tiers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from deliveries.store import trial
from subscriptions.iam import access
from subscriptions.identity.recent import recent_callers


@dataclass(frozen=True)
class Answer:
    """An HTTP status and the decoded JSON that came with it."""

    status: int
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.body["error"]
        return error

    @property
    def fields(self) -> list[str]:
        """Return the fields that an INVALID_ARGUMENT names."""
        details = self.error.get("details", [])
        return [violation["field"] for detail in details for violation in detail["fieldViolations"]]


class Api:
    """The project `shop`, without credentials."""

    root = "/v1/projects/shop/"

    def __init__(self) -> None:
        self.client = Client(raise_request_exception=False)

    def sign_in(self, email: str, *, is_superuser: bool = False) -> None:
        """Make all later calls as a member of staff, `user:{email}`."""
        user = User.objects.create(username=email, email=email, is_staff=True, is_superuser=is_superuser)
        self.client.force_login(user)

    def call(
        self, method: str, path: str, body: Any = None, *, query: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        url = path if path.startswith("/") else self.root + path
        data = body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
        response = self.client.generic(
            method, url, data, content_type="application/json", headers=headers, query_params=query
        )
        return Answer(response.status_code, orjson.loads(response.content))

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("PUT", path, {} if body is None else body, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("POST", path, {} if body is None else body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("PATCH", path, {} if body is None else body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.call("DELETE", path, **headers)

    def create(self, path: str, body: Any = None) -> Any:
        """Create the resource at `path` and return it; fail if it cannot be created."""
        answer = self.put(path, body)
        assert answer.status == 200, answer
        return answer.body


def root_client(**options: Any) -> Client:
    """Return a console client of the superuser `user:root@example.com`, with these options of Django's client."""
    client = Client(**options)
    client.force_login(User.objects.create_superuser("root", "root@example.com"))
    return client


def staff_client(name: str) -> Client:
    """Return a console client of `user:{name}@example.com`, who has all of Django's permissions."""
    user = User.objects.create_user(name, f"{name}@example.com", is_staff=True)
    user.user_permissions.set(Permission.objects.all())
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture(autouse=True)
def no_decisions_of_the_test_before() -> None:
    """Forget cached decisions and callers, as a new row may get the number of a deleted one; and what was refused."""
    access.forget_decisions()
    recent_callers.clear()
    trial.note_refusal(None)


@pytest.fixture
def api(db: None) -> Api:
    return Api()


@pytest.fixture
def client(db: None) -> Client:
    """The console of a superuser, in place of pytest-django's client without a login."""
    return root_client()
