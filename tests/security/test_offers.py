"""Someone with one role sees no link and no button on the console that would be refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urldefrag, urljoin

import pytest
from django.contrib.messages import get_messages
from django.db import transaction
from django.http import HttpResponse
from django.test import Client

from subscriptions.iam import access, grants
from subscriptions.models import Project, Subscription, Topic
from tests.demoreceivers import stop_receiver
from tests.tenants import World, member_of, world_of_tenants

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

#: Their answer has nothing to do with roles, or ends the session.
LEFT_OUT = re.compile(r"^/admin/(logout|password_change|jsi18n|choose-project|login)/|^(?!/admin/)")
REFUSED = re.compile(r"permission|not authorized|denied|权限", re.I)


class Offer(NamedTuple):
    """A link, or a button with what its form sends."""

    method: str
    address: str
    data: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> tuple[object, ...]:
        """What permissions depend on: not the order or range of a list, nor the values of a form but its button's."""
        path = self.address if "/demo/" in self.address else self.address.partition("?")[0]
        # Each change adds an entry, and all entries of a list are alike.
        path = re.sub(r"/auditentry/\d+/", "/auditentry/N/", path)
        return self.method, path, tuple(name for name, _ in self.data), self.data[-1:]


class Offers(HTMLParser):
    """The links and buttons of a page, with the values that its forms have."""

    def __init__(self, page: str, *, address: str) -> None:
        super().__init__()
        self.offers: list[Offer] = []
        self._address = address
        self._form: tuple[str, str] | None = None
        self._values: list[tuple[str, str]] = []
        self._buttons: list[tuple[str, str]] = []
        self._actions: list[str] = []
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        name = values.get("name", "")
        if tag == "a" and values.get("href"):
            self._add("GET", values["href"])
        elif tag == "form":
            self._form = values.get("method", "get").upper(), values.get("action", "")
            self._values, self._buttons, self._actions = [], [], []
        elif tag == "button" or (tag == "input" and values.get("type") == "submit"):
            self._buttons.append((name, values.get("value", "")))
        elif tag == "input" and name:
            # A row is chosen, so that the actions on rows have one.
            is_row = name in ("_selected_action", "letter")
            if values.get("type") not in ("checkbox", "radio") or "checked" in values or is_row:
                self._values.append((name, values.get("value", "on")))
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select == "action":
            self._actions.append(values.get("value", ""))
        elif tag == "option" and "selected" in values:
            self._values.append((self._select, values.get("value", "")))

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = ""
        if tag != "form" or self._form is None:
            return
        method, action = self._form
        self._form = None
        for action_name in self._actions:
            if action_name:
                self._add(method, action, *self._values, ("action", action_name))
        for button in self._buttons:
            self._add(method, action, *self._values, *([button] if button[0] else []))

    def _add(self, method: str, target: str, *data: tuple[str, str]) -> None:
        address = urldefrag(urljoin(self._address, target)).url
        # A form of a dialog only closes it.
        if method != "DIALOG" and not LEFT_OUT.search(address):
            kept = tuple(pair for pair in data if pair[0] != "csrfmiddlewaretoken")
            self.offers.append(Offer(method, address, kept))


def test_links_and_buttons_are_seen() -> None:
    page = """<a href="../b/#top">b</a><a href="https://example.com/">x</a><form method="post" action="act/">
    <input type="hidden" name="rate" value="5"><input type="checkbox" name="letter" value="7">
    <button name="do" value="redrive">Redrive</button><button>Other</button></form>"""
    assert Offers(page, address="/admin/a/c/").offers == [
        Offer("GET", "/admin/a/b/"),
        Offer("POST", "/admin/a/c/act/", (("rate", "5"), ("letter", "7"), ("do", "redrive"))),
        Offer("POST", "/admin/a/c/act/", (("rate", "5"), ("letter", "7"))),
    ]


@pytest.fixture
def world(redis_url: str, settings: Any) -> Iterator[World]:
    """Two tenants, a demo, and endpoints to which no request is made: the guard denies them at once."""
    settings.ALLOW_PRIVATE = False
    world = world_of_tenants()
    project = Project.objects.get(project_id="acme")
    demo = Topic.objects.create(project=project, topic_id="demo")
    Subscription.objects.create(project=project, subscription_id="demo", topic=demo, push_endpoint="https://127.0.0.1/")
    Subscription.objects.update(push_endpoint="https://127.0.0.1/", dead_letter_topic=demo)
    yield world
    stop_receiver()


@pytest.mark.parametrize("role", ["roles/viewer", "roles/pubsub.subscriber", "roles/editor"])
def test_nothing_is_offered_that_is_refused(world: World, role: str) -> None:
    """Each change is rolled back, so that every other button still has its row."""
    grants.grant_role(Project.objects.get(project_id="acme"), role=role, member=member_of("stranger"))
    access.forget_decisions()
    client = world.clients["stranger"]
    starts = ["/admin/", "/admin/deliveries/delivery/demo/?project=acme"]
    waiting = [Offer("GET", address) for address in starts]
    offered: dict[tuple[object, ...], str] = {}
    seen = {offer.kind for offer in waiting}
    refused = {}
    while waiting:
        offer = waiting.pop()
        response = answer(client, offer)
        if is_refused(response):
            refused[offer.kind] = response.status_code
        if response.status_code != 200 or "html" not in response.headers["Content-Type"]:
            continue
        for further in Offers(response.content.decode(), address=offer.address).offers:
            offered.setdefault(further.kind, offer.address)
            if further.kind not in seen:
                seen.add(further.kind)
                waiting.append(further)
    troubles = [f"{kind} on {page}: {refused[kind]}" for kind, page in offered.items() if kind in refused]
    assert troubles == [], "\n".join(troubles)
    assert len(offered) > 10


def answer(client: Client, offer: Offer) -> Any:
    with transaction.atomic():
        if offer.method == "GET":
            path, _, query = offer.address.partition("?")
            response = client.get(path, [*parse_qsl(query), *offer.data])
        else:
            response = client.post(offer.address, _fields(offer.data))
        transaction.set_rollback(True)
    # What a refusal tells the next page is told here once.
    client.cookies.pop("messages", None)
    access.forget_decisions()
    return response


def _fields(data: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for name, value in data:
        fields.setdefault(name, []).append(value)
    return fields


def is_refused(response: HttpResponse) -> bool:
    """Tell whether the answer is a 403 or 404, or a page or message about a missing permission."""
    errors = [str(message) for message in get_messages(response.wsgi_request) if message.level_tag == "error"]  # type: ignore[attr-defined]
    if response.status_code == 200 and "errorlist" in response.content.decode():
        errors += re.findall(r'<ul class="errorlist.*?</ul>', response.content.decode(), re.S)
    return response.status_code in (403, 404) or any(REFUSED.search(error) for error in errors)
