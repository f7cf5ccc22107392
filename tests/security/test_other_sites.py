"""What pages of other sites send to a PushHub that asks for no credentials, also by DNS rebinding."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any

import pytest

from deliveries.telemetry.export.readiness import CHECKS
from pushhub.testing import Emulator
from subscriptions.models import Topic
from tests.restapi import Api

pytestmark = pytest.mark.any_database

#: An address of each surface: REST, the console, the documentation, metrics, static files, the emulator's own address,
#: and what a browser can send to a gRPC method.
REQUESTS = [
    ("PUT", "/v1/projects/shop/topics/orders"),
    ("GET", "/v1/projects/shop/topics"),
    ("GET", "/admin/login/"),
    ("POST", "/admin/login/"),
    ("GET", "/docs"),
    ("GET", "/schema"),
    ("GET", "/metrics"),
    ("GET", "/static/admin/css/base.css"),
    ("POST", "/token"),
    ("POST", "/google.pubsub.v1.Publisher/ListTopics"),
    ("POST", "/emulator/reset"),
]
REBOUND = [
    *("evil.example", "127.0.0.1.evil.example", "evil.example.", "localhost.evil.example", "a@evil.example"),
    "internal.testing",
]


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(projects=["shop,orders"]) as emulator:
        yield emulator


def status(address: str, method: str, path: str, host: str, **headers: str) -> int:
    """Return the status of a request to `address` that names another host, as a browser would send it."""
    connection = http.client.HTTPConnection(address, timeout=60)
    content_type = "application/grpc-web" if path.startswith("/google.") else "application/json"
    try:
        connection.request(
            method, path, b"" if method == "GET" else b"{}", {"Host": host, "Content-Type": content_type, **headers}
        )
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_the_emulator_answers_no_name_that_a_web_site_can_have(emulator: Emulator, method: str, path: str) -> None:
    console = emulator.console_url.removeprefix("http://")

    for address in (console, emulator.host_port):
        port = address.rpartition(":")[2]
        for name in REBOUND:
            host = f"{name}:{port}"
            assert status(address, method, path, host, Origin=f"http://{host}") == 400, (address, name)
            assert status(address, method, path, host) == 400, (address, name)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_the_emulator_answers_no_page_of_another_site(emulator: Emulator, method: str, path: str) -> None:
    for address in (emulator.console_url.removeprefix("http://"), emulator.host_port):
        for origin in ("http://evil.example", "null", "http://[", f"http://{address}.evil.example"):
            assert status(address, method, path, address, Origin=origin) == 403


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "LOCALHOST.", "[::1]", "pubsub", "10.1.2.3", "[fd00::2]"),
        *("host.docker.internal", "HOST.Testcontainers.Internal", "app.localhost", "a.b.test"),
    ],
)
def test_the_emulator_answers_names_that_only_its_own_network_has(emulator: Emulator, host: str) -> None:
    """Containers of a compose file have names of one label."""
    assert status(emulator.host_port, "GET", "/v1/projects/shop/topics", f"{host}:8085") == 200
    origin = f"http://{host}:8085"
    assert status(emulator.host_port, "POST", "/emulator/reset", f"{host}:8085", Origin=origin) == 204


def test_the_emulator_answers_names_that_the_settings_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHHUB_ALLOWED_HOSTS", "pubsub.example")
    with Emulator() as emulator:
        assert status(emulator.host_port, "GET", "/v1/projects/shop/topics", "pubsub.example:8085") == 200
        assert status(emulator.host_port, "GET", "/v1/projects/shop/topics", "evil.example:8085") == 400


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_make_up_answers_neither(api: Api, method: str, path: str) -> None:
    for host in (*REBOUND, "pubsub", "10.1.2.3"):
        assert api.client.generic(method, path, b"{}", headers={"Host": host}).status_code == 400
    for origin in ("http://evil.example", "null"):
        assert api.client.generic(method, path, b"{}", headers={"Origin": origin}).status_code == 403
    assert not Topic.objects.exists()


def test_a_page_of_the_public_url_is_one_of_pushhub(api: Api) -> None:
    """A tunnel or a proxy of a development environment may change the Host."""
    origin = "http://127.0.0.1:8000"
    assert api.put("topics/orders", Origin=origin, **{"Sec-Fetch-Site": "same-origin"}).status == 200


def test_monitoring_may_call_a_production_by_any_name(api: Api, settings: Any) -> None:
    """A kubelet or a load balancer names an address. The names of all others are known, and the refusal says where."""
    settings.ANONYMOUS, settings.METRICS, settings.METRICS_TOKEN = "", True, "secret"
    readyz = f"/readyz?{'&'.join(f'exclude={name}' for name in CHECKS)}"
    for path, expected in (("/healthz", 200), (readyz, 200), ("/metrics", 401)):
        assert api.client.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == expected
    refused = api.get("topics", Host="10.1.2.3:8000")
    assert refused.status == 400 and "PUSHHUB_ALLOWED_HOSTS" in refused.error["message"]
    settings.METRICS_TOKEN = ""
    assert api.client.get("/metrics", headers={"Host": "evil.example"}).status_code == 400
