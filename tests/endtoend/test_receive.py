"""`pushhub receive`, run as a user runs it, verifies tokens against a real JWK set."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from http.client import HTTPConnection

import jwt
import pytest
import requests
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.ports import free_port, wait_for
from tests.unit.management.test_pushrequest import WRAPPED

AUDIENCE = "the-audience"
EMAIL = "pusher@demo.iam.gserviceaccount.com"


@cache
def keys() -> dict[str, rsa.RSAPrivateKey]:
    """Return two keys, made by the first test that needs them: every test process imports this module."""
    return {owner: rsa.generate_private_key(public_exponent=65537, key_size=2048) for owner in ("pushhub", "forger")}


def token(signer: str = "pushhub", **changes: object) -> str:
    now = int(time.time())
    claims = {
        "aud": AUDIENCE, "azp": "1", "sub": "1", "email": EMAIL, "email_verified": True,
        "iat": now - 5, "exp": now + 3600, "iss": "http://127.0.0.1",
    }  # fmt: skip
    return jwt.encode({**claims, **changes}, keys()[signer], algorithm="RS256", headers={"kid": "k1"})


@pytest.fixture
def certs_url() -> Iterator[str]:
    jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(keys()["pushhub"].public_key()))
    body = json.dumps({"keys": [{**jwk, "kid": "k1", "alg": "RS256", "use": "sig"}]}).encode()

    class Certificates(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Certificates) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/certs"
        server.shutdown()
        thread.join()


@contextmanager
def receive(
    *words: str, stop_with: signal.Signals = signal.SIGINT, **settings: str
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Run a receiver; yield its URL and a function that returns its output so far. The receiver must end cleanly."""
    port = free_port()
    command = [sys.executable, "manage.py", "receive", "--port", str(port), *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PUSHHUB_")}
    environment |= settings
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout
        reader = threading.Thread(target=lines.extend, args=(iter(process.stdout.readline, ""),))
        reader.start()
        try:
            wait_for(lambda: any("receiving pushes" in line for line in lines), what="the receiver")
            yield f"http://127.0.0.1:{port}/push", lambda: "".join(lines)
            process.send_signal(stop_with)
            assert process.wait(timeout=120) == 0
        finally:
            process.kill()
            reader.join()
    assert lines[-1] == "the receiver has stopped\n"


def port_of(url: str) -> int:
    return int(url.split(":")[2].split("/")[0])


def test_a_push_is_printed_and_the_connection_stays_open() -> None:
    with receive() as (url, printed), closing(HTTPConnection("127.0.0.1", port_of(url), timeout=120)) as client:
        sockets = set()
        for _ in range(2):
            client.request("POST", "/push", body=WRAPPED)
            sockets.add(client.sock)
            answer = client.getresponse()
            assert (answer.status, answer.read()) == (204, b"")
        assert len(sockets) == 1
        for words in (
            "not verified",
            "projects/p/subscriptions/s message 7 attempt 5, answered 204",
            "key = value",
            "Hello",
        ):
            wait_for(lambda words=words: words in printed(), what=words)  # type: ignore[misc]


def test_a_good_token_is_verified_and_others_are_answered_401(certs_url: str) -> None:
    refused = [
        token("forger"),
        token(aud="another"),
        token(exp=int(time.time()) - 100),
        token(email_verified=False),
        token(email_verified="true"),
        jwt.encode({"aud": AUDIENCE}, "x" * 40, algorithm="HS256", headers={"kid": "k1"}),
        "nonsense",
    ]
    with receive("--verify", AUDIENCE, "--certs", certs_url, stop_with=signal.SIGTERM) as (url, printed):
        for bad in refused:
            answer = requests.post(url, data=WRAPPED, headers={"Authorization": f"Bearer {bad}"}, timeout=120)
            assert answer.status_code == 401, bad
        assert requests.post(url, data=WRAPPED, timeout=120).status_code == 401
        wait_for(lambda: printed().count("NOT VERIFIED") == len(refused) + 1, what="the refusals")
        good = requests.post(url, data=WRAPPED, headers={"Authorization": f"Bearer {token()}"}, timeout=120)
        assert good.status_code == 204
        wait_for(lambda: f" verified {EMAIL}, audience {AUDIENCE}" in printed(), what="the acceptance")


def test_tokens_are_checked_with_the_certificates_of_the_server_that_other_commands_speak_to(certs_url: str) -> None:
    with receive("--verify", AUDIENCE, PUSHHUB_URL=certs_url.removesuffix("/certs")) as (url, _):
        good = requests.post(url, data=WRAPPED, headers={"Authorization": f"Bearer {token()}"}, timeout=120)
        assert good.status_code == 204


def test_the_requested_status_is_answered() -> None:
    with receive("--status", "503", "--delay", "0.01") as (url, _):
        assert requests.post(url, data=WRAPPED, timeout=120).status_code == 503
        assert requests.post(url, data=b"nonsense", timeout=120).status_code == 400


def test_a_request_that_is_no_push_is_printed_without_steering_the_terminal() -> None:
    with receive() as (url, printed), socket.create_connection(("127.0.0.1", port_of(url))) as client:
        client.sendall(b"POST /\x1b[2J HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
        wait_for(lambda: "/\\x1b[2J is not a push (KeyError: 'message')" in printed(), what="the request")


def test_a_final_102_has_no_body_and_ends_the_connection() -> None:
    with receive("--status", "102") as (url, _), socket.create_connection(("127.0.0.1", port_of(url))) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(WRAPPED) + WRAPPED)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer == b"HTTP/1.1 102 Processing\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("words", [["--status", "99"], ["--status", "101"], ["--delay", "-1"], ["--port", "70000"]])
def test_a_bad_option_is_reported_in_one_line(words: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "manage.py", "receive", *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert process.returncode == 2
    [line] = process.stderr.splitlines()
    assert f"argument {words[0]}: '{words[1]}': give " in line


def test_a_taken_port_is_reported_in_one_line() -> None:
    with receive() as (url, _):
        port = str(port_of(url))
        process = subprocess.run(
            [sys.executable, "manage.py", "receive", "--port", port],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert process.returncode == 1
    assert process.stderr == f"cannot listen on 127.0.0.1:{port}: Address already in use; choose a --port\n"
