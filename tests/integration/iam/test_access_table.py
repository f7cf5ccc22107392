"""Every method by every predefined role, and no route without an entry in the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.api.base import ApiView, PublicView
from subscriptions.iam import grants
from subscriptions.iam.methods import METHODS, On, authorize, request_names
from subscriptions.iam.roles import PERMISSIONS, PREDEFINED
from subscriptions.iam.tree import get_resource
from tests.restapi import Api

pytestmark = pytest.mark.any_database

ADA = "user:ada@example.com"
MATRIX = Path(__file__).parents[2] / "data" / "methods_by_role.txt"
HTTP_METHODS = ("get", "put", "post", "patch", "delete")
ANYBODY = "*"

#: Views that need no credentials.
PUBLIC_VIEWS = {
    "list_pem_certificates",
    "list_jwk_certificates",
    "list_certificates",
    "get_token_info",
    "OpenidConfiguration",
    "Discovery",
    "MethodNotFound",
}
#: Views that need a proof of their own: an assertion, or the token to revoke.
PUBLIC_VIEWS |= {"exchange_assertion", "revoke_token"}
#: Addresses outside of the API, which have permission checks of their own or none.
OTHER_ADDRESSES = {"", "healthz", "metrics", "readyz", "schema", "docs", "docs/guide/(?P<path>.*)$"}


def matrix() -> dict[str, set[str]]:
    """Return the methods of each role from the file."""
    methods_by_role: dict[str, set[str]] = {}
    role = ""
    for line in MATRIX.read_text().splitlines():
        if line.startswith("["):
            role = line.strip("[]")
            methods_by_role[role] = set()
        elif line.startswith("+"):
            methods_by_role[role] |= methods_by_role[line.removeprefix("+ ")]
        elif line and not line.startswith("#"):
            methods_by_role[role].add(line)
    return methods_by_role


EXPECTED = matrix()


def name_for(method: str, source: str, on: On) -> str:
    """Return a resource of the method's kind; the project stands for snapshots and schemas that don't exist."""
    kind = PERMISSION_KINDS.get(method.rpartition(".")[2])
    if kind:
        return kind
    permission = next(requirement.permission for requirement in METHODS[method] if requirement.source == source)
    collection, verb = permission.split(".")[-2:]
    if verb in ("list", "create", "validate") and on == On.ITSELF and collection != "serviceAccountKeys":
        return "projects/shop"
    return NAMES[collection]


PERMISSION_KINDS = {"GetIamPolicy": "projects/shop/topics/orders", "SetIamPolicy": "projects/shop/topics/orders"}
NAMES = {
    "topics": "projects/shop/topics/orders",
    "subscriptions": "projects/shop/subscriptions/audit",
    "snapshots": "projects/shop/snapshots/none",
    "schemas": "projects/shop/schemas/none",
    "serviceAccounts": "projects/shop/serviceAccounts/pusher@shop.iam.gserviceaccount.com",
    "serviceAccountKeys": "projects/shop/serviceAccounts/pusher@shop.iam.gserviceaccount.com",
    "roles": "projects/shop/roles/none",
    "projects": "projects/shop",
    # The project stands for these as well: the matrix is about which permission a method asks for.
    "organizations": "projects/shop",
    "folders": "projects/shop",
    "servicePerimeters": "projects/shop",
    "metricDescriptors": "projects/shop",
}


def names_for(method: str) -> dict[str, str]:
    names = {
        requirement.source: name_for(method, requirement.source, requirement.on) for requirement in METHODS[method]
    }
    if method == "google.pubsub.v1.Publisher.DetachSubscription":
        names["subscription"] = NAMES["subscriptions"]
    if method.endswith("AccountKey") and METHODS[method][0].on == On.PARENT:
        names["name"] += "/keys/1"
    return names


@pytest.fixture
def shop(api: Api) -> Api:
    api.create("topics/orders")
    api.create("subscriptions/audit", {"topic": "projects/shop/topics/orders"})
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    return api


def callable_by(member: str) -> set[str]:
    methods = set()
    for method in METHODS:
        try:
            authorize(Principal(member), method, names_for(method))
        except PermissionDenied:
            continue
        methods.add(method)
    return methods


def test_the_matrix_has_every_role_and_every_method() -> None:
    assert set(EXPECTED) - {ANYBODY} == set(PREDEFINED)
    assert set().union(*EXPECTED.values()) == set(METHODS)


@pytest.mark.parametrize("role", sorted(PREDEFINED))
def test_each_method_by_each_predefined_role_on_the_project(shop: Api, role: str) -> None:
    grants.grant_role(get_resource("projects/shop"), role=role, member=ADA)

    assert callable_by(ADA) == EXPECTED[role] | EXPECTED[ANYBODY]


def test_without_any_role_a_known_caller_may_do_next_to_nothing(shop: Api) -> None:
    assert callable_by(ADA) == EXPECTED[ANYBODY]


def test_the_operator_may_call_everything(shop: Api) -> None:
    assert callable_by(ADA) != set(METHODS)
    for method in METHODS:
        authorize(OPERATOR, method, names_for(method))


def test_a_method_without_an_entry_is_refused() -> None:
    with pytest.raises(PermissionDenied, match="no entry"):
        authorize(OPERATOR, "google.pubsub.v1.Publisher.NoSuch", {})


def test_a_grpc_request_has_its_names_in_its_fields() -> None:
    update = SimpleNamespace(topic=SimpleNamespace(name="projects/shop/topics/orders"))
    create = SimpleNamespace(name="projects/shop/subscriptions/audit", topic="projects/shop/topics/orders")

    assert request_names("google.pubsub.v1.Publisher.UpdateTopic", update) == {"topic.name": update.topic.name}
    assert request_names("google.pubsub.v1.Subscriber.CreateSubscription", create) == vars(create)
    assert request_names("google.iam.v1.IAMPolicy.TestIamPermissions", create) == {}


def test_the_table_asks_for_permissions_that_exist() -> None:
    for method, requirements in METHODS.items():
        for requirement in requirements:
            assert requirement.permission.startswith("*.") or requirement.permission in PERMISSIONS, method


def routes(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for entry in (resolver or get_resolver()).url_patterns:
        address = prefix + str(entry.pattern).removeprefix("^")
        if isinstance(entry, URLResolver):
            yield from routes(entry, address)
        else:
            yield address, entry


def test_each_route_has_an_entry_for_each_http_method() -> None:
    seen = 0
    for address, route in routes():
        view = getattr(route.callback, "view_class", None) or getattr(route.callback, "cls", None)
        if address.startswith(("admin/", "i18n/")) or address in OTHER_ADDRESSES:
            continue
        assert view is not None, f"{address} is not a view of the API"
        assert issubclass(view, ApiView), f"{address} doesn't ask who calls"
        if issubclass(view, PublicView):
            assert view.__name__ in PUBLIC_VIEWS, f"{address} is open to everybody"
            continue
        for http_method in HTTP_METHODS:
            if hasattr(view, http_method):
                assert view.methods.get(http_method.upper()) in METHODS, f"{http_method.upper()} {address} has no entry"
                seen += 1
    assert seen > 30


def test_a_view_without_an_entry_is_closed() -> None:
    class Forgotten(ApiView):
        def get(self, request: Any) -> None:
            raise AssertionError("nobody was asked")

    from rest_framework.test import APIRequestFactory

    response = Forgotten.as_view()(APIRequestFactory().get("/v1/forgotten"))

    assert response.status_code == 404
