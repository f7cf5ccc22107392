"""The receivers of docs/receivers: each accepts the pushes that PushHub signed for it, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from pytest_django.live_server_helper import LiveServer

from deliveries.models import Delivery
from tests.compatibility import packages
from tests.integration.identity.test_tokens import forged
from tests.ports import free_port, wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import ROOT, Worker

FOLDER = ROOT / "docs" / "receivers"
AUDIENCE = "https://shop.example/push"
EMAIL = "pusher@shop.iam.gserviceaccount.com"
STRANGER = "stranger@shop.iam.gserviceaccount.com"
RIGHT = {"oidcToken": {"serviceAccountEmail": EMAIL, "audience": AUDIENCE}}
#: Subscriptions by the fault of their pushes, and their push configuration.
CONFIGS: dict[str, dict[str, Any]] = {
    "none": RIGHT,
    "no-token": {},
    "wrong-audience": {"oidcToken": {"serviceAccountEmail": EMAIL, "audience": "https://other.example"}},
    "foreign-key": RIGHT,
    "wrong-email": {"oidcToken": {"serviceAccountEmail": STRANGER, "audience": AUDIENCE}},
}
FAULTS = CONFIGS.keys() - {"none"}
#: The statuses with which a receiver may answer, by fault.
EXPECTED = {"none": {204}, "no-token": {401}, "wrong-audience": {401}, "foreign-key": {401}, "wrong-email": {403}}
#: The environment variables that the receivers get besides their settings.
INHERITED = ("PATH", "HOME", "LANG", "JAVA_HOME")


@dataclass(frozen=True)
class Program:
    """How to start a receiver on a port, and the issuer whose tokens it accepts."""

    command: Callable[[int], list[str]]
    folder: str
    environment: Callable[[], dict[str, str]] = dict
    issuer: str = "https://pushhub.example"


def _python(*words: str) -> Callable[[int], list[str]]:
    return lambda port: [sys.executable, "-W", "ignore", *words, str(port)]


def _java(port: int) -> list[str]:
    return ["java", "-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp", packages.java_classpath(FOLDER / "java"), "Receiver"]


PROGRAMS = {
    "flask": Program(
        _python("-m", "flask", "--app", "flask_receiver", "run", "--port"),
        "python",
        issuer="https://accounts.google.com",
    ),
    "fastapi": Program(_python("-m", "uvicorn", "fastapi_receiver:app", "--port"), "python"),
    "django": Program(_python("django_receiver.py", "runserver", "--noreload"), "python"),
    "express": Program(
        lambda port: ["node", "receiver.js"],
        "node",
        environment=lambda: {"NODE_PATH": str(packages.node_modules(FOLDER / "node"))},
    ),
    "go": Program(lambda port: [str(packages.go_program(FOLDER / "go"))], "go"),
    "java": Program(_java, "java"),
}


@dataclass
class Running:
    """A running receiver."""

    url: str
    log: Path

    def times_received(self, message_id: str, text: str) -> int:
        return self.log.read_text().count(f"received {message_id}: {text}\n")


@contextmanager
def running(program: Program, *, pushhub_url: str) -> Iterator[Running]:
    """Start a receiver as the first lines of its source say, and stop it at the end."""
    port = free_port()
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | program.environment()
    environment |= {
        "PORT": str(port),
        "PUSH_AUDIENCE": AUDIENCE,
        "PUSHHUB_URL": pushhub_url,
        "PUSH_ISSUER": program.issuer,
        "PUSH_SERVICE_ACCOUNT": EMAIL,
    }
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(
            program.command(port), cwd=FOLDER / program.folder, env=environment, stdout=log, stderr=log
        )
        receiver = Running(f"http://127.0.0.1:{port}/push", Path(log.name))
        try:
            wait_for(lambda: process.poll() is not None or _answers(receiver.url), what="the receiver")
            assert process.poll() is None, receiver.log.read_text()
            yield receiver
        except BaseException:
            sys.stderr.write(receiver.log.read_text())
            raise
        finally:
            process.terminate()
            process.wait(timeout=30)


def _answers(url: str) -> bool:
    try:
        return requests.post(url, json={}, timeout=30).status_code == 401
    except requests.ConnectionError:
        return False


@dataclass
class Forwarder:
    """Passes pushes on to the receiver and keeps its answers, by the fault that the request's path names."""

    url: str
    statuses: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_mended: bool = False

    def __call__(self, request: Request) -> int:
        fault = request.path.rpartition("/")[2]
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        if fault == "foreign-key" and not self.is_mended:
            token = headers["authorization"].removeprefix("Bearer ")
            headers["authorization"] = f"Bearer {forged(token, 'another key')}"
        status = requests.post(self.url, data=request.body, headers=headers, timeout=30).status_code
        self.statuses[fault].append(status)
        return status


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_receiver_accepts_only_pushes_that_are_signed_for_it(
    transactional_db: None, live_server: LiveServer, redis_url: str, name: str
) -> None:
    program = PROGRAMS[name]
    api = Api()
    api.create("topics/orders")
    for account in ("pusher", "stranger"):
        assert api.post("serviceAccounts", {"accountId": account}).status == 200
    with (
        running(program, pushhub_url=live_server.url) as receiver,
        Receiver(Forwarder(receiver.url)) as endpoint,
        Worker(redis_url, PUSHHUB_ISSUER=program.issuer),
    ):
        forwarder = endpoint.default
        assert isinstance(forwarder, Forwarder)
        for fault, config in CONFIGS.items():
            push = {"pushEndpoint": f"{endpoint.url}/{fault}", **config}
            api.create(f"subscriptions/{fault}", {"topic": "projects/shop/topics/orders", "pushConfig": push})
        published = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
        [message_id] = published.body["messageIds"]

        # Every refused push is sent again.
        wait_for(lambda: all(len(forwarder.statuses[fault]) > 1 for fault in FAULTS), what="redeliveries")
        wait_for(lambda: forwarder.statuses["none"], what="the push without a fault")
        assert {fault: set(forwarder.statuses[fault]) for fault in CONFIGS} == EXPECTED
        assert receiver.times_received(message_id, "hello") == 1

        # Once its fault is mended, the receiver gets the message.
        forwarder.is_mended = True
        for fault in FAULTS:
            push = {"pushEndpoint": f"{endpoint.url}/{fault}", **RIGHT}
            assert api.post(f"subscriptions/{fault}:modifyPushConfig", {"pushConfig": push}).status == 200
        wait_for(lambda: all(204 in forwarder.statuses[fault] for fault in FAULTS), what="the message")
        assert receiver.times_received(message_id, "hello") == len(CONFIGS)
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
