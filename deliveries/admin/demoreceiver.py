"""The push endpoint of the console's demo: acknowledges every push, and keeps the last of them to be shown.

It listens on loopback only, at a port that the system chooses, and knows one path, which nobody can guess. It answers
one request at a time, each within seconds, and ends with the web process. The address guard decides whether push
workers may reach it, as it does for any endpoint.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from deliveries.backlog.default import default_backlog, impatient_backlog
from deliveries.backlog.records import PREFIX
from deliveries.management.pushrequest import NotAPushError, Pushed, read_pushed
from pushhub.common.clock import time_text, utcnow

#: A demo's message is short; a larger request is refused.
BODY_BYTES = 64 * 1024
#: How long a request may take to arrive.
REQUEST_SECONDS = 5.0
#: What is kept of a push, how many of them, and for how long.
SHOWN_CHARACTERS = 200
ARRIVALS_KEPT = 20
KEPT_SECONDS = 3600


class DemoReceiver(HTTPServer):
    """A server in a thread of this process."""

    def __init__(self, arrived: Callable[[Pushed], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.path, self.arrived = f"/demo/{secrets.token_urlsafe(16)}", arrived
        self._thread = threading.Thread(target=self.serve_forever, name="demo-receiver", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.path}"

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: DemoReceiver
    timeout = REQUEST_SECONDS

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not hmac.compare_digest(self.path.encode(), self.server.path.encode()):
            return self._answer(404)
        if not length.isdecimal() or int(length) > BODY_BYTES:
            return self._answer(413)
        try:
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.server.arrived(read_pushed(headers=headers, body=self.rfile.read(int(length))))
        except NotAPushError:
            return self._answer(400)
        return self._answer(204)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The console shows what arrived."""


def note_arrival(pushed: Pushed) -> None:
    """Keep a push for a while. Any web process shows it."""
    arrival = {
        "at": time_text(utcnow(), milliseconds=True),
        "message_id": pushed.message_id,
        "data": pushed.data.decode(errors="replace")[:SHOWN_CHARACTERS],
    }
    key = _key(pushed.subscription)
    pipe = default_backlog().shared.pipeline()
    pipe.lpush(key, json.dumps(arrival))
    pipe.ltrim(key, 0, ARRIVALS_KEPT - 1)
    pipe.expire(key, KEPT_SECONDS)
    pipe.execute()


def arrivals(subscription: str) -> list[dict[str, str]]:
    """Return the last pushes of a subscription that arrived, the latest first; may raise redis.RedisError."""
    return [json.loads(arrival) for arrival in impatient_backlog().shared.lrange(_key(subscription), 0, -1)]


def _key(subscription: str) -> str:
    return f"{PREFIX}demo:{subscription}"


_receiver: DemoReceiver | None = None
_starting = threading.Lock()


def receiver_url() -> str:
    """Return the address of this process's receiver, which is started by the first call."""
    global _receiver
    with _starting:
        _receiver = _receiver or DemoReceiver(note_arrival)
        return _receiver.url
