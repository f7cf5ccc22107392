"""The console's links in projects with ids that only the emulator takes."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import quote, unquote_plus, urljoin

import pytest
from django.contrib.auth.models import User
from django.test import Client

from pushhub.common import names
from subscriptions.models import Snapshot, Subscription, Topic
from subscriptions.models.resources import Project
from subscriptions.models.schemas import Schema
from tests.restapi import Api, root_client

pytestmark = pytest.mark.any_database

AVRO = '{"type": "record", "name": "Order", "fields": []}'


@pytest.mark.parametrize("project", ["porto sentido", "Test", "a.b", "123", "50% off? #1", '"><b>&c=d;e'])
def test_links_with_any_project_lead_somewhere(
    api: Api, project: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a resource of each kind in the emulator
    settings.EMULATOR = "MEMORY"
    monkeypatch.setattr(names, "_emulated", True)
    root, name = f"/v1/projects/{quote(project, safe='')}", f"projects/{project}"
    answers = [
        api.put(f"{root}/topics/orders", {}),
        api.put(f"{root}/subscriptions/billing", {"topic": f"{name}/topics/orders"}),
        api.put(f"{root}/snapshots/before", {"subscription": f"{name}/subscriptions/billing"}),
        api.post(f"{root}/schemas?schemaId=order", {"type": "AVRO", "definition": AVRO}),
    ]
    assert [answer.status for answer in answers] == [200] * 4, answers
    client = root_client()
    pages = [
        f"/admin/subscriptions/{model._meta.model_name}/{model._default_manager.get().pk}/change/"
        for model in (Project, Topic, Subscription, Snapshot, Schema)
    ]
    pages += ["/admin/", f"/admin/subscriptions/policy/of/{quote(name)}/topics/orders/"]

    # When the links of their pages are followed that have the project's name
    found = set()
    for page in pages:
        response = client.get(page, follow=True)
        assert response.status_code == 200, page
        links = (urljoin(page, unescape(link)) for link in re.findall(r'href="([^"]*)"', response.content.decode()))
        found |= {link for link in links if name in unquote_plus(link)}

    # Then each leads to a page
    assert len(found) >= 5
    assert {link: client.get(link).status_code for link in found} == dict.fromkeys(found, 200)


def test_the_emulators_console_asks_for_no_login(api: Api, settings: Any) -> None:
    """Given the emulator, whose database may have no user at all, then its pages open."""
    address = "/admin/subscriptions/topic/"
    assert Client().get(address, follow=True).redirect_chain[-1][0].startswith("/admin/login/")
    settings.EMULATOR = "MEMORY"
    client = Client()
    answer = client.get(address, follow=True)
    assert (answer.status_code, answer.redirect_chain[-1][0]) == (200, address)
    assert client.get("/admin/login/?next=//evil.example/", follow=True).redirect_chain[-1][0] == "/admin/"
    User.objects.all().delete()
    assert client.get(address, follow=True).status_code == 200, "a reset forgets the user"
