"""Flower: no page without its login, only our own host names, and bounded guessing."""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from celery.events.state import Task
from django.contrib.auth.models import User
from django.test import Client
from tornado.httputil import HTTPHeaders, HTTPServerRequest, RequestStartLine

from pushhub.common.throttle import WINDOW_SECONDS, LocalCounters
from pushhub.runtime import monitor, monitorguard
from tests.clocks import Clock
from tests.flowers import LOGIN

pytestmark = pytest.mark.any_database

#: An address of every kind of handler of Flower: pages, its API, and what it would show without a login.
PATHS = ["/", "/workers", "/tasks", "/api/workers", "/metrics", "/healthcheck", "/static/css/flower.css", "/no"]


def guard(clock: Clock | None = None) -> monitorguard.Guard:
    counters = LocalCounters(clock or Clock())
    return monitorguard.Guard(hosts=["127.0.0.1", "flower.example.com"], logins=[LOGIN], counters=counters)


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def request(host: str = "127.0.0.1:5555", address: str = "192.0.2.1", method: str = "GET", **headers: str) -> Any:
    fields = {name.replace("_", "-"): value for name, value in headers.items() if value}
    line = RequestStartLine(method, "/", "HTTP/1.1")
    made = HTTPServerRequest(start_line=line, headers=HTTPHeaders({**fields, "Host": "a"}))
    made.headers["Host"], made.remote_ip = host, address
    return made


def asked(flower_guard: monitorguard.Guard, login: str, address: str = "192.0.2.1") -> int:
    return flower_guard.refusal(request(address=address, Authorization=basic(login) if login else ""))


def test_wrong_logins_are_bounded_per_address_until_the_window_ends() -> None:
    clock = Clock()
    flower_guard = guard(clock)
    for _ in range(monitorguard.WRONG_LOGINS):
        assert asked(flower_guard, "") == 401, "a browser's first request is not a guess"
        assert asked(flower_guard, "admin:wrong") == 401
    assert asked(flower_guard, "admin:wrong") == 429
    assert asked(flower_guard, LOGIN) == 429, "even the right login is refused after too many guesses"
    assert asked(flower_guard, LOGIN, "192.0.2.2") == 0, "no other address is locked out"
    clock.now += WINDOW_SECONDS
    assert asked(flower_guard, LOGIN) == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "flower.example.com@evil", "[::1"])
def test_an_unknown_host_is_refused_whatever_the_login(host: str) -> None:
    assert guard().refusal(request(host, Authorization=basic(LOGIN), Cookie="pushhub_session=root")) == 400


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !", "Bearer x", "basic " + basic(LOGIN)[6:], basic(LOGIN) + "x"]
)
def test_only_the_login_opens_flower(authorization: str) -> None:
    assert guard().refusal(request("flower.example.com", Authorization=authorization)) == 401


@pytest.mark.parametrize(
    ("origin", "fetch_site", "status"),
    [
        ("", "", 0),
        ("http://127.0.0.1:5555", "same-origin", 0),
        ("", "none", 0),
        ("http://127.0.0.1:8000", "same-site", 403),
        ("https://evil.example", "cross-site", 403),
        ("http://127.0.0.1:8080", "", 403),
        ("null", "", 403),
        ("http://[", "", 403),
    ],
)
def test_no_page_of_another_origin_changes_anything(origin: str, fetch_site: str, status: int) -> None:
    """This also holds without a login, as any web page can reach a server on loopback."""
    headers = {"Origin": origin, "Sec-Fetch-Site": fetch_site}
    open_guard = monitorguard.Guard(hosts=["127.0.0.1"], logins=[], asks_for_login=False)
    assert open_guard.refusal(request(method="POST", **headers)) == status
    assert open_guard.refusal(request(method="GET", **headers)) == 0


def test_a_superusers_session_opens_flower_for_as_long_as_it_lasts() -> None:
    clock = Clock()
    superusers = {"root"}
    flower_guard = monitorguard.Guard(
        hosts=["127.0.0.1"], logins=[LOGIN], check_session=superusers.__contains__, clock=clock
    )
    root = request(Cookie="pushhub_session=root")
    assert flower_guard.refusal(root) == 0
    for refused in (request(Cookie="pushhub_session=ada"), request(Cookie="pushhub_session="), request()):
        assert flower_guard.refusal(refused) == 401
    wrong = request(Cookie="pushhub_session=root", Authorization=basic("a:b"))
    assert flower_guard.refusal(wrong) == 401, "a wrong login is refused all the same"
    superusers.clear()
    assert flower_guard.refusal(root) == 0
    clock.now += monitorguard.SESSION_SECONDS
    assert flower_guard.refusal(root) == 401


@pytest.mark.django_db(transaction=True)
def test_only_an_active_superuser_of_the_console_counts() -> None:
    def signed_in(**rights: bool) -> str:
        user = User.objects.create(username=f"user-{User.objects.count()}", **rights)
        client = Client()
        client.force_login(user)
        return str(client.session.session_key)

    root = signed_in(is_staff=True, is_superuser=True)
    assert monitorguard.is_superuser_session(root)
    assert not monitorguard.is_superuser_session(signed_in(is_staff=True))
    assert not monitorguard.is_superuser_session("no such session")
    User.objects.update(is_active=False)
    assert not monitorguard.is_superuser_session(root)


def test_a_retry_is_shown_with_its_time_and_the_time_left() -> None:
    def shown(at: datetime) -> str:
        task = Task(uuid="1", eta="2026-11-22T08:31:12.250+00:00")
        return str(monitor.format_task(task, clock=lambda: at).eta)

    due = datetime(2026, 11, 22, 8, 31, 12, 250_000, tzinfo=UTC)
    assert shown(due - timedelta(seconds=1.5)) == "2026-11-22 08:31:12.250 UTC (in 1.5 s)"
    assert shown(due) == "2026-11-22 08:31:12.250 UTC (due)"


def get(address: str, **headers: str) -> requests.Response:
    return requests.get(address, headers=headers, timeout=30, allow_redirects=False)


def test_all_of_flower_asks_for_its_login_and_for_a_known_host_and_its_pages_carry_a_policy(flower: str) -> None:
    for path in PATHS:
        assert get(flower + path).status_code == 401, path
        assert get(flower + path, Authorization=basic("a:b"), Host="evil.example").status_code == 400, path
        assert get(flower + path, Authorization=basic(LOGIN)).status_code == (404 if path == "/no" else 200), path
    assert requests.post(f"{flower}/api/worker/shutdown/push", timeout=30).status_code == 401

    page = get(f"{flower}/workers", Authorization=basic(LOGIN))
    assert "/broker" not in page.text
    assert get(f"{flower}/broker", Authorization=basic(LOGIN)).status_code == 404
    console = "http://127.0.0.1:8000/admin/"
    assert f'href="{console}"' in page.text
    browsers = get(f"{flower}/workers", Accept="text/html,*/*")
    assert (browsers.status_code, f'href="{console}deliveries/delivery/flower/"' in browsers.text) == (401, True)
    assert "WWW-Authenticate" not in browsers.headers
    scripts = re.findall(r"<script(?![^>]* src)[^>]*>(.*?)</script>", page.text, re.S)
    assert scripts
    assert set(scripts) <= set(monitor.INLINE_SCRIPTS), "otherwise the policy would block Flower's own scripts"
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self' 'sha256-" in policy
    assert "default-src 'none'" in policy
