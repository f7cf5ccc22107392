"""Flower: nothing of it without its login, no host but ours, and no endless guessing."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import requests

from pushhub.common.throttle import WINDOW_SECONDS, LocalCounters
from pushhub.runtime import monitor
from tests.ports import free_port, wait_for

LOGIN = "admin:correct horse"
#: Every kind of handler of Flower's: pages, its API, and what it shows without a login.
PATHS = [
    "/",
    "/workers",
    "/tasks",
    "/api/workers",
    "/metrics",
    "/healthcheck",
    "/static/css/flower.css",
    "/no",
]


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def guard(clock: Clock | None = None) -> monitor.Guard:
    counters = LocalCounters(clock or Clock())
    return monitor.Guard(hosts=["127.0.0.1", "flower.example.com"], logins=[LOGIN], counters=counters)


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def asked(made: monitor.Guard, login: str, address: str = "192.0.2.1") -> int:
    return made.refusal(host="127.0.0.1:5555", authorization=basic(login) if login else "", address=address)


def test_wrong_logins_are_bounded_for_each_address_and_not_for_good() -> None:
    clock = Clock()
    made = guard(clock)
    for _ in range(monitor.WRONG_LOGINS):
        assert asked(made, "") == 401, "a browser's first request is no guess"
        assert asked(made, "admin:wrong") == 401
    assert asked(made, "admin:wrong") == 429
    assert asked(made, LOGIN) == 429, "guessing goes on to be refused, right or wrong"
    assert asked(made, LOGIN, "192.0.2.2") == 0, "nobody else is locked out"
    clock.now += WINDOW_SECONDS
    assert asked(made, LOGIN) == 0


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "flower.example.com@evil", "[::1"])
def test_an_unknown_host_is_refused_whatever_the_login(host: str) -> None:
    assert guard().refusal(host=host, authorization=basic(LOGIN), address="192.0.2.1") == 400


@pytest.mark.parametrize(
    "authorization", ["Basic", "Basic !", "Bearer x", "basic " + basic(LOGIN)[6:], basic(LOGIN) + "x"]
)
def test_nothing_but_the_login_opens(authorization: str) -> None:
    assert guard().refusal(host="flower.example.com", authorization=authorization, address="192.0.2.1") == 401


@pytest.fixture
def flower(redis_url: str) -> Iterator[str]:
    """Flower as it is started in production, with a login."""
    port = free_port()
    environment = {
        **os.environ,
        "PUSHHUB_FLOWER": f"127.0.0.1:{port}",
        "PUSHHUB_FLOWER_LOGIN": LOGIN,
        "PUSHHUB_REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
    }
    command = [sys.executable, "-m", "pushhub.runtime.processes", "flower"]
    process = subprocess.Popen(command, env=environment)
    try:
        check = [*command, "--check"]
        wait_for(lambda: subprocess.run(check, env=environment, check=False).returncode == 0, what="Flower")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def get(address: str, **headers: str) -> requests.Response:
    return requests.get(address, headers=headers, timeout=30, allow_redirects=False)


def test_all_of_flower_asks_for_its_login_and_for_a_known_host_and_its_pages_carry_a_policy(flower: str) -> None:
    for path in PATHS:
        assert get(flower + path).status_code == 401, path
        assert get(flower + path, Authorization=basic("a:b"), Host="evil.example").status_code == 400, path
        assert get(flower + path, Authorization=basic(LOGIN)).status_code == (404 if path == "/no" else 200), path
    assert requests.post(f"{flower}/api/worker/shutdown/push", timeout=30).status_code == 401

    page = get(f"{flower}/workers", Authorization=basic(LOGIN))
    scripts = re.findall(r"<script(?![^>]* src)[^>]*>(.*?)</script>", page.text, re.S)
    assert scripts
    assert set(scripts) <= set(monitor.INLINE_SCRIPTS), "or the policy would block Flower's own"
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self' 'sha256-" in policy
    assert "default-src 'none'" in policy
