"""Which tenant a request of the web server counts for, before anybody knows its caller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import RequestFactory

from subscriptions.identity import tenants
from subscriptions.identity.tenants import admit_tenant, tenant_of

SHOP = "/v1/projects/shop/topics"


@pytest.fixture(autouse=True)
def nobody_is_known() -> Iterator[None]:
    tenants._admitted.clear()
    yield
    tenants._admitted.clear()


def tenant(target: str, *, authorization: str = "", cookie: str = "") -> str:
    return tenant_of(target=target, authorization=authorization, cookie=cookie, client="192.0.2.1")


def admit(*, authorization: str = "", cookie: str = "", project: str = "", user: str = "") -> None:
    fields = {"HTTP_AUTHORIZATION": authorization, "HTTP_COOKIE": cookie}
    request = RequestFactory().get("/", **{name: value for name, value in fields.items() if value})
    admit_tenant(request, project=project, user=user)


def test_an_unknown_caller_counts_for_its_address() -> None:
    for target in (SHOP, "/v1/projects/other/topics", "/admin/", "/token", "/v1/projects/"):
        assert tenant(target, authorization="Bearer x") == "client 192.0.2.1"


def test_a_caller_that_was_let_in_counts_for_its_project_and_no_other() -> None:
    admit(authorization="Bearer x", project="shop")
    assert tenant(SHOP, authorization="Bearer x") == "project shop"
    assert tenant("/v3/projects/shop/timeSeries?a=b", authorization="Bearer x") == "project shop"
    assert tenant("/v1/projects/shop:testMessageTransforms", authorization="Bearer x") == "project shop"
    for target in ("/v1/projects/other/topics", "/v1/projects/shopping/topics", "/admin/"):
        assert tenant(target, authorization="Bearer x") == "client 192.0.2.1"


def test_a_stranger_does_not_take_the_turns_of_a_project() -> None:
    admit(authorization="Bearer x", project="shop")
    for strange in ("", "Bearer y"):
        assert tenant(SHOP, authorization=strange) == "client 192.0.2.1"
    assert tenant(SHOP, authorization="Bearer x", cookie="a=b") == "client 192.0.2.1"


def test_a_page_counts_for_the_user_who_is_signed_in() -> None:
    admit(cookie="session=1", user="user:ada@example.com")
    assert tenant("/admin/", cookie="session=1") == "user user:ada@example.com"
    assert tenant("/admin/", cookie="session=2") == "client 192.0.2.1"
