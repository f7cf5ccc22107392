"""Django's live server behind the gRPC port: it learns the client from the port's line, as the web server does."""

from __future__ import annotations

from io import BufferedReader

from django.core.servers.basehttp import WSGIRequestHandler
from django.test.testcases import QuietWSGIRequestHandler

from pushhub.runtime.httpserver.forwarding import BEGINNING, read_client


def learn_clients() -> None:
    """Have every live server of this process read the line."""

    def setup(handler: WSGIRequestHandler) -> None:
        WSGIRequestHandler.setup(handler)
        assert isinstance(handler.rfile, BufferedReader)
        if handler.rfile.peek(len(BEGINNING)).startswith(BEGINNING):
            handler.client_address = (read_client(handler.rfile.readline().rstrip())[1], 0)

    QuietWSGIRequestHandler.setup = setup  # type: ignore[method-assign]
