"""Each of fifty broken set-ups: the console, `diagnose`, `describe` and Flower name its cause in the same word.

All of them stand side by side at one push worker; each is asked about once it has shown what is wrong with it.
"""

from __future__ import annotations

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from deliveries.backlog.default import default_backlog
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.models import DeadLetter, Delivery
from pushhub.common.clock import utcnow
from subscriptions.management.commands.pubsub import Command
from subscriptions.models import Subscription
from tests.certificates import Authority
from tests.integration.push.test_flower import search
from tests.ports import free_port, wait_for
from tests.receiver import Answer, Receiver, Script
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

HANGS = Answer(delay_seconds=600)
EMAIL = "pusher@shop.iam.gserviceaccount.com"


class Stand:
    """What all set-ups share: the API, and receivers of every kind."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.api = Api()
        self.stack = stack
        self.authority = Authority(folder)
        self.messages: dict[str, str] = {}
        self.api.post("serviceAccounts", {"accountId": "pusher"})

    def subscribe(self, name: str, endpoint: str, **fields: Any) -> None:
        """Create a topic, and a subscription that pushes to the endpoint; "" is a pull subscription."""
        self.api.create(f"topics/{name}")
        config = {"pushConfig": {"pushEndpoint": endpoint, **fields.pop("push", {})}} if endpoint else {}
        topic = f"projects/shop/topics/{name}"
        self.api.create(f"subscriptions/{name}", {"topic": topic, **config, **fields})

    def publish(self, name: str, count: int = 1, **headers: str) -> None:
        body = {"messages": [{"data": "aGVsbG8=", "orderingKey": "key"}] * count}
        answer = self.api.post(f"topics/{name}:publish", body, **headers)
        assert answer.status == 200, answer
        self.messages[name] = answer.body["messageIds"][0]

    def answering(self, script: Script) -> str:
        return self.stack.enter_context(Receiver(default=script)).url

    def faults_of(self, name: str, case: Case, surfaces: Surfaces, flower: str) -> list[str]:
        """Wait until the set-up shows what is wrong with it; return where a surface says something else."""
        wait_for(lambda: case.is_ready(name), what=name)
        # The sentence follows within moments.
        with suppress(AssertionError):
            wait_for(lambda: not surfaces.faults(name, case), timeout_seconds=60)
        if case.result:
            query = f"{self.messages[name]} result:{case.result}"
            wait_for(lambda: search(flower, query), what=f"in Flower: {query}")
        return surfaces.faults(name, case)

    def tls(self, context: Any) -> str:
        receiver = Receiver(default=204)
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        self.stack.enter_context(receiver)
        return f"https://localhost:{receiver.port}/push"

    def self_signed(self) -> str:
        """Serve TLS with a certificate that signs itself."""
        other = Authority(self.authority._folder / "other")
        pem = other._folder / "self.pem"
        key = other._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        pem.write_bytes(key + other.ca_file.read_bytes())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return self.tls(context)

    def raw(self, answer: bytes, *, hangs: bool = False) -> str:
        """Return the address of a server that answers each request with these bytes, and then hangs up or hangs."""
        ended = threading.Event()

        class Handler(socketserver.BaseRequestHandler):
            """Answers one request."""

            def handle(self) -> None:
                with suppress(OSError):
                    self.request.recv(1 << 20)
                    self.request.sendall(answer)
                    ended.wait(600 if hangs else 0)

        server = self.stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler))
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(server.shutdown)
        self.stack.callback(ended.set)
        return f"http://127.0.0.1:{server.server_address[1]}/push"


@dataclass(frozen=True)
class Case:
    """A set-up, when it has shown what is wrong, and what is then to be read. "" as `step` says that nothing is."""

    break_it: Callable[[Stand, str], object]
    step: str
    #: Words of the diagnosis' summary.
    summary: str
    #: Words of the console's sentence.
    sentence: str = ""
    #: How pushes end: the one word for it on every surface.
    result: str = ""
    levels: tuple[str, ...] = ("warn", "bad")
    is_ready: Callable[[str], object] = field(default=lambda name: True)


def failing(
    endpoint: Callable[[Stand], str],
    result: str,
    step: str,
    summary: str,
    *,
    change: dict[str, Any] | None = None,
    **fields: Any,
) -> Case:
    """Return a case whose pushes end with `result`."""

    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, "http://127.0.0.1:40009/", **fields)
        settings = {"push_endpoint": endpoint(stand), **(change or {})}
        # The API would refuse some of these.
        Subscription.objects.filter(subscription_id=name).update(**settings)
        stand.publish(name)

    return Case(break_it, step, summary, result=result, is_ready=lambda name: nacked(name, result))


def nacked(name: str, result: str, *, times: int = 1) -> bool:
    rows = Delivery.objects.filter(subscription__subscription_id=name, last_result=result, attempts__gte=times)
    return rows.exists()


def answered(status: int, summary: str, **fields: Any) -> Case:
    return failing(lambda stand: stand.answering(status), str(status), "answer", summary, **fields)


def settled(name: str) -> bool:
    return not Delivery.objects.filter(subscription__subscription_id=name).exists()


def function(code: str) -> dict[str, Any]:
    return {"message_transforms": [{"javascriptUdf": {"functionName": "f", "code": code}}]}


def act(stand: Stand, name: str, method: str, body: Any = None) -> Any:
    answer = stand.api.post(f"subscriptions/{name}:{method}", body)
    assert answer.status == 200, answer
    return answer.body


def set_up(
    *steps: Callable[[Stand, str], object], script: Script = 204, count: int = 1, **fields: Any
) -> Callable[[Stand, str], None]:
    """Return a function that subscribes, publishes `count` messages, and then takes the steps."""

    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, stand.answering(script), **fields)
        if count:
            stand.publish(name, count)
        for step in steps:
            step(stand, name)

    return break_it


def pulled(*, count: int, pulls: int = 0) -> Callable[[Stand, str], None]:
    def break_it(stand: Stand, name: str) -> None:
        stand.subscribe(name, "", ackDeadlineSeconds=600)
        stand.publish(name, count)
        if pulls:
            act(stand, name, "pull", {"maxMessages": pulls})

    return break_it


def dead_letters(stand: Stand, name: str, *, is_deleted: bool = False) -> None:
    stand.api.create(f"topics/{name}-dead")
    policy = {"deadLetterTopic": f"projects/shop/topics/{name}-dead", "maxDeliveryAttempts": 5}
    stand.subscribe(name, stand.answering(500), deadLetterPolicy=policy)
    if is_deleted:
        assert stand.api.delete(f"topics/{name}-dead").status == 200
    stand.publish(name)


def about_to_expire(stand: Stand, name: str) -> None:
    rows = Subscription.objects.filter(subscription_id=name)
    rows.update(
        expiration_ttl_seconds=7 * 86400, active_at=utcnow() - timedelta(days=6.5), updated_at="2020-01-01T00:00Z"
    )


def move_to_a_good_endpoint(stand: Stand, name: str) -> None:
    wait_for(lambda: nacked(name, "500", times=2), what="nacks")
    act(stand, name, "modifyPushConfig", {"pushConfig": {"pushEndpoint": stand.answering(204)}})


NOTHING_FOUND = "No fault was found, but not every step was tried: answer."
WELL = {"step": "", "summary": NOTHING_FOUND, "sentence": "Nothing waits.", "levels": ("", "good"), "is_ready": settled}
ACCOUNT = {"oidc_service_account_email": EMAIL}
CASES = {
    "refused": failing(
        lambda _: f"http://127.0.0.1:{free_port()}/", "connect_failed", "connection", "Start the endpoint"
    ),
    "no-address": failing(lambda _: "http://nowhere.invalid/", "dns_failed", "name", "Correct the name"),
    "metadata": failing(lambda _: "http://169.254.169.254/", "address_denied", "guard", "Push to a public address"),
    "bad-port": failing(lambda _: "https://127.0.0.1:22/", "invalid_endpoint", "url", "port 22"),
    "expired-certificate": failing(
        lambda stand: stand.tls(stand.authority.server_context("localhost", expired=True)),
        *("tls_failed", "certificate", "has expired."),
    ),
    "other-host": failing(
        lambda stand: stand.tls(stand.authority.server_context("other.test")),
        *("tls_failed", "certificate", "another host name"),
    ),
    "self-signed": failing(lambda stand: stand.self_signed(), "tls_failed", "certificate", "is self-signed."),
    "no-tls": failing(
        lambda stand: stand.answering(204).replace("http:", "https:"),
        *("tls_failed", "certificate", "TLS handshake fails"),
    ),
    "hangs": failing(
        lambda stand: stand.answering(HANGS),
        *("deadline_exceeded", "answer", "Answer before the ack deadline"),
        change={"ack_deadline_seconds": 1},
    ),
    "slow-body": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", hangs=True),
        *("body_timeout", "answer", "Answer with a small header and body"),
    ),
    "cut-off": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"),
        *("body_incomplete", "answer", "closes the connection within its answer"),
    ),
    "hangs-up": failing(lambda stand: stand.answering(Answer(hang_up=True)), "reset", "answer", "before it answers"),
    "garbage": failing(
        lambda stand: stand.raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "invalid_response", "answer", "speak HTTP/1.1"
    ),
    "huge-header": failing(
        lambda stand: stand.raw(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"),
        *("header_too_large", "answer", "Answer with a small header and body"),
    ),
    "redirect": answered(301, "pushes do not follow redirects"),
    "s400": answered(400, "Answer 102, 200, 201, 202 or 204"),
    "s401": answered(401, f"and the email {EMAIL}", change=ACCOUNT),
    "s403": answered(403, "No token was sent"),
    "s404": answered(404, "Correct the path"),
    "s405": answered(405, "let it take POST"),
    "s413": answered(413, "bodies as large as the messages"),
    "s429": answered(429, "x-pushhub-rate"),
    "s500": answered(500, "the endpoint's own log"),
    "s503": answered(503, "the endpoint's own log"),
    "long-backoff": answered(503, "503", retryPolicy={"minimumBackoff": "600s", "maximumBackoff": "600s"}),
    "no-account": failing(
        lambda stand: stand.answering(204),
        *("token_denied", "token", "does not exist"),
        change={"oidc_service_account_email": "nobody@shop.iam.gserviceaccount.com"},
    ),
    "throws": failing(
        lambda stand: stand.answering(204),
        *("transform_failed", "transforms", "Correct the function"),
        change=function("function f(message) { throw 'no'; }"),
    ),
    "endless": failing(
        lambda stand: stand.answering(204),
        *("transform_failed", "transforms", "Correct the function"),
        change=function("function f(message) { while (true) {} }"),
    ),
    "poison": Case(
        set_up(script=500, count=2, enableMessageOrdering=True),
        *("ordering", "dead-letter it or skip it", "key wait for it: 1."),
        result="500",
        is_ready=lambda name: nacked(name, "500", times=3),
    ),
    "paused": Case(
        set_up(lambda stand, name: act(stand, name, "pause"), count=0), "subscription", "Resume it", "Paused by user:"
    ),
    "resumed": Case(
        set_up(lambda stand, name: act(stand, name, "pause"), lambda stand, name: act(stand, name, "resume")), **WELL
    ),
    "topic-deleted": Case(
        set_up(lambda stand, name: stand.api.delete(f"topics/{name}"), count=0),
        *("subscription", "another topic", "The topic was deleted"),
    ),
    "expiring": Case(set_up(about_to_expire, count=0), "subscription", "expiration policy", "is deleted at"),
    "filter": Case(
        set_up(filter="attributes:never"), "filter", "none of the newest 1 messages", "Nothing waits.", levels=("",)
    ),
    "filtering-transform": Case(
        lambda stand, name: failing(
            lambda stand: stand.answering(500), "", "", "", change=function("function f(message) { return null; }")
        ).break_it(stand, name),
        **WELL,
    ),
    "dead-lettered": Case(
        dead_letters,
        *("flow", "Dead letters that nobody has dealt with: 1.", "Dead letters that nobody has dealt with: 1."),
        is_ready=lambda name: DeadLetter.objects.filter(subscription__subscription_id=name).exists(),
    ),
    "no-dead-letter-topic": Case(
        lambda stand, name: dead_letters(stand, name, is_deleted=True),
        *("dead letters", "Create the dead letter topic anew", "The dead letter topic was deleted"),
        result="500",
        is_ready=lambda name: nacked(name, "500", times=6),
    ),
    "own-limit": Case(
        set_up(script=HANGS, count=3, ackDeadlineSeconds=600, push={"attributes": {"x-pushhub-max-outstanding": "1"}}),
        *("flow", "Raise the limit", "own limit x-pushhub-max-outstanding: 1 messages are outstanding, 3 undelivered."),
    ),
    "own-rate": Case(
        set_up(count=9, push={"attributes": {"x-pushhub-rate": "0.01", "x-pushhub-burst": "1"}}),
        *("flow", "Raise the limit", "own limit x-pushhub-rate: 0 messages are outstanding, 8 undelivered."),
    ),
    "full-window": Case(
        set_up(script=HANGS, count=9, ackDeadlineSeconds=600), "flow", "the window grows", "The push window is full"
    ),
    "first-push": Case(
        set_up(script=HANGS, ackDeadlineSeconds=600),
        *("", NOTHING_FOUND, "1 messages are outstanding, 1 undelivered; no push has ended yet."),
        levels=("",),
    ),
    "nothing-published": Case(set_up(count=0), **WELL),
    "acknowledged": Case(set_up(count=3), **WELL),
    "moved": Case(set_up(move_to_a_good_endpoint, script=500), **WELL),
    "nobody-pulls": Case(pulled(count=2), "flow", "Start a subscriber", "Messages that wait to be pulled: 2."),
    "pulled-and-held": Case(
        pulled(count=2, pulls=2),
        *("", "Nothing is wrong", "Subscribers hold 2 of 2 undelivered messages"),
        levels=("",),
    ),
}
#: The sentence while the whole stack is broken, the step that fails then, and words of the summary.
BROKEN_STACK = {
    "no maintenance": ("No maintenance worker gives a sign of life", "maintenance", "Start one"),
    "no worker": ("No push worker of region local has lived for", "worker", "Start one"),
    "read-only database": ("The database takes no writes", "database", "Look at the log of the database"),
    "no Redis": ("Redis does not answer.", "worker", "Start Redis."),
}


class Surfaces:
    """What a reader sees of a subscription, and what is wrong with that."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.client = Client()
        self.client.force_login(User.objects.create_superuser("root", "root@example.com"))
        self.capsys = capsys

    def console(self, name: str) -> dict[str, Any]:
        pk = Subscription.objects.get(subscription_id=name).pk
        shown: dict[str, Any] = self.client.get(f"/admin/deliveries/delivery/state/{pk}/live/").json()
        return shown

    def command_line(self, line: str) -> tuple[int, Any]:
        """Return the exit code of a command line, and the JSON that it prints."""
        self.capsys.readouterr()
        code = 0
        try:
            Command().run_from_argv(["manage.py", "pubsub", "subscriptions", *line.split(), "--format=json"])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, json.loads(self.capsys.readouterr().out)

    def faults(self, name: str, case: Case) -> list[str]:
        """Return what the surfaces say of a case that they should not."""
        shown = self.console(name)
        code, answer = self.command_line(f"diagnose {name}")
        _, described = self.command_line(f"describe {name}")
        summary = answer["summary"]
        text = f"{name}: {shown['level'] or '-'} {shown['sentence']} | {code} {summary}"
        is_wrong = bool(case.step)
        checks = {
            "sentence": case.sentence in shown["sentence"] and case.result in shown["sentence"],
            "level": shown["level"] in case.levels,
            "step": summary.startswith(f"{case.step}: ") if is_wrong else summary.startswith("No"),
            "summary": case.summary in summary,
            "result": case.result in str(answer["steps"]),
            "exit code": code == int(is_wrong),
            "healthy": answer["healthy"] is not is_wrong,
            "state": described["state"] == "ACTIVE",
        }
        return [f"{check}: {text}" for check, holds in checks.items() if not holds]


def test_every_surface_names_the_cause(
    redis_url: str,
    tmp_path: Path,
    flower: str,
    live_server: LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
) -> None:
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    monkeypatch.setenv("PUSHHUB_PROJECT", "shop")
    (tmp_path / "other").mkdir()  # for the certificate that signs itself
    default_backlog().client.set(AUDIT_KEY, "[]", ex=600)
    with ExitStack() as stack:
        stand = Stand(tmp_path, stack)
        settings.PUSH_CA_FILE = str(stand.authority.ca_file)
        surfaces = Surfaces(capsys)
        with Worker(redis_url, PUSHHUB_PUSH_CA_FILE=settings.PUSH_CA_FILE):
            for name, case in CASES.items():
                case.break_it(stand, name)
            faults: list[str] = []
            for name, case in CASES.items():
                faults += stand.faults_of(name, case, surfaces, flower)
            faults += while_all_is_broken(surfaces, stand, settings, "no maintenance")
        faults += while_all_is_broken(surfaces, stand, settings, "no worker")
        faults += while_all_is_broken(surfaces, stand, settings, "read-only database")
        faults += while_all_is_broken(surfaces, stand, settings, "no Redis")
    assert not faults, "\n".join(faults)


def while_all_is_broken(surfaces: Surfaces, stand: Stand, settings: Any, what: str) -> list[str]:
    """Break the whole stack, and return what is wrong with what is said of a subscription that was well before."""
    sentence, step, words = BROKEN_STACK[what]
    name, client = "acknowledged", default_backlog().client
    match what:
        case "no maintenance":
            client.delete(AUDIT_KEY)
        case "no worker":
            client.set(AUDIT_KEY, "[]", ex=600)
            client.delete("ph:workers")
            client.zadd("ph:regions", {"local": time.time() * 1000 - 60_000})
        case "read-only database" if connection.vendor == "sqlite":
            client.zadd("ph:workers", {"push@test": time.time() * 1000})
            client.zadd("ph:regions", {"local": time.time() * 1000})
            connection.cursor().execute("PRAGMA query_only = 1")
        case "no Redis":
            settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    # For a second, a message that was stored counts.
    with suppress(AssertionError):
        wait_for(lambda: sentence in surfaces.console(name)["sentence"], what=what)
    shown = surfaces.console(name)["sentence"]
    summary = stand.api.post(f"subscriptions/{name}:diagnose", {}).body["summary"]
    if what == "read-only database":
        connection.cursor().execute("PRAGMA query_only = 0")
    text = f"{what}: {shown} | {summary}"
    return [] if sentence in shown and summary.startswith(f"{step}: ") and words in summary else [text]
