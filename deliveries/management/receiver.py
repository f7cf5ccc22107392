"""`pushhub receive`: a push endpoint for people. It prints each push, and whether its token is genuine.

It needs neither the database nor Redis, and starts without Django, which would take half a second.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

import jwt

from deliveries.management.pushrequest import NotAPushError, Pushed, TokenVerifier, read_pushed, text_for_people
from pushhub.common import environment as env
from pushhub.common.parser import Parser

#: More than any push has: 10 MB of data take less than this in base64.
BODY_BYTES = 16 * 1024 * 1024

#: The receiver remembers for this many messages how often they came.
REMEMBERED_MESSAGES = 10_000


class Receiver(ThreadingTCPServer):
    """The listening server. It knows which answer to give, and prints the pushes."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(
        self, address: tuple[str, int], *, status: int, delay_seconds: float, verifier: TokenVerifier | None
    ) -> None:
        super().__init__(address, Handler)
        self.status = status
        self.delay_seconds = delay_seconds
        self.verifier = verifier
        self._sightings: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = threading.Lock()

    def times_seen(self, pushed: Pushed) -> int:
        """Count how often a subscription sent a message. Only a dead-letter policy makes requests tell the attempt."""
        delivery = pushed.subscription, pushed.message_id
        with self._lock:
            self._sightings[delivery] = self._sightings.get(delivery, 0) + 1
            self._sightings.move_to_end(delivery)
            if len(self._sightings) > REMEMBERED_MESSAGES:
                self._sightings.popitem(last=False)
            return self._sightings[delivery]

    def show(self, *lines: str) -> None:
        """Print the lines of one push together."""
        stamp = time.strftime("%H:%M:%S")
        with self._lock:
            print("\n".join([f"{stamp} {lines[0]}", *(f"         {line}" for line in lines[1:])]), flush=True)  # noqa: T201

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client hangs up. PushHub does so at the ack deadline, and reports it on its side."""


class Handler(BaseHTTPRequestHandler):
    """One keep-alive connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Receiver

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > BODY_BYTES:
            self.close_connection = True
            return self._answer(413 if length.isdigit() else 411)
        body = self.rfile.read(int(length))
        is_trusted, proof = self._proof()
        try:
            pushed = read_pushed(headers={name.lower(): value for name, value in self.headers.items()}, body=body)
        except NotAPushError as error:
            self.server.show(f"{proof}: {text_for_people(f'{self.path} is not a push ({error})'.encode())}")
            return self._answer(400)
        status = self.server.status if is_trusted else 401
        self.server.show(*self._lines(pushed, proof=proof, status=status))
        time.sleep(self.server.delay_seconds)
        return self._answer(status)

    def _proof(self) -> tuple[bool, str]:
        """Return whether to accept the push, and a text that says which account its token proves."""
        if self.server.verifier is None:
            return True, "not verified (start with --verify AUDIENCE to check tokens)"
        try:
            email = self.server.verifier.email(self.headers.get("Authorization", ""))
        except jwt.PyJWTError as error:
            return False, f"NOT VERIFIED, {text_for_people(str(error).encode())}"
        return True, f"verified {text_for_people(email.encode())}, audience {self.server.verifier.audience}"

    def _lines(self, pushed: Pushed, *, proof: str, status: int) -> list[str]:
        attempt = self.server.times_seen(pushed)
        what = f"{pushed.subscription} message {pushed.message_id} attempt {pushed.delivery_attempt or attempt}"
        lines = [proof, f"{text_for_people(what.encode())}, answered {status}"]
        if pushed.ordering_key:
            lines.append(f"ordering key {text_for_people(pushed.ordering_key.encode())}")
        lines.extend(text_for_people(f"{key} = {value}".encode()) for key, value in pushed.attributes.items())
        return [*lines, text_for_people(pushed.data) if pushed.data else "(no data)"]

    def _answer(self, status: int) -> None:
        if status == 102:  # final for Pub/Sub, but interim in HTTP, so nothing follows it
            self.wfile.write(b"HTTP/1.1 102 Processing\r\nConnection: close\r\n\r\n")
            self.close_connection = True
            return
        self.send_response_only(status)
        if self.close_connection:
            self.send_header("Connection", "close")
        if status >= 200 and status not in (204, 304):
            self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, because `show` prints the pushes."""


def parser() -> ArgumentParser:
    options = Parser(
        prog="pushhub receive",
        description="Receive pushes on a port of this machine and print each, with what its token proves.",
    )
    add = options.add_argument
    add("--port", type=_port, default=8080, help="the port (default 8080; 0 chooses a free one)")
    add("--address", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    add("--status", type=_status, default=204, help="the HTTP status to answer with (default 204)")
    add("--delay", type=_seconds, default=0.0, metavar="SECONDS", help="how long to wait before it")
    add("--verify", metavar="AUDIENCE", default="", help="check each push's token; answer 401 if it is not valid")
    add("--certs", metavar="URL", default="", help="the JWK set to check with (default: that of PUSHHUB_URL)")
    return options


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 2**16:
        return int(text)
    raise ArgumentTypeError(f"{text!r}: give a port from 0 to 65535")


def _status(text: str) -> int:
    if text.isdecimal() and (int(text) == 102 or 200 <= int(text) <= 599):
        return int(text)
    raise ArgumentTypeError(f"{text!r}: give 200 to 599, or 102, which acknowledges too")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise ArgumentTypeError(f"{text!r}: give 0 or more seconds")


def main(arguments: Sequence[str]) -> None:
    """Receive pushes until Ctrl-C or SIGTERM. Exits with one line if an option is wrong or the port is taken."""
    options = parser().parse_args(arguments)
    verifier = None
    if options.verify:
        certs_url = options.certs or f"{env.server_url()}/oauth2/v3/certs"
        verifier = TokenVerifier(audience=options.verify, certs_url=certs_url)
    address = (options.address, options.port)
    try:
        server = Receiver(address, status=options.status, delay_seconds=options.delay, verifier=verifier)
    except OSError as error:
        sys.exit(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}; choose a --port")
    _serve(server)


def _serve(server: Receiver) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # Started in the background by a script, a process is born deaf to Ctrl-C; `kill` must do in any case.
    signal.signal(signal.SIGTERM, stop)
    host, port = server.server_address[:2]
    _say(f"receiving pushes at http://{host!s}:{port}/")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        _say("the receiver has stopped")
    finally:
        server.server_close()


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
