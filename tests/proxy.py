"""A UNIX socket in front of another one, so that a test can take a server away and bring it back."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self


class Proxy:
    """Passes bytes both ways while it is up; `cut` ends every connection and refuses new ones until `mend`.

    Each piece of data waits for `delay_seconds`, which may change at any time. `passed` counts the pieces.
    """

    def __init__(self, path: Path, target: str) -> None:
        self.delay_seconds = 0.0
        self.passed = 0
        self._path = path
        self._target = target
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.cut()

    def mend(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> int:
        """End every connection, and return how many there were."""
        assert self._listener is not None
        self._path.unlink()
        connections = list(self._open)
        for opened in [self._listener, *connections]:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self._open.clear()
        return len(connections) // 2

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Pass bytes both ways until both sides have ended. A server that is away ends the connection."""
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            pair = {client, server}
            self._open |= pair
            try:
                server.connect(self._target)
                answers = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
                answers.start()
                self._pass_on(client, server)
                answers.join()
            finally:
                self._open -= pair

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.delay_seconds:
                    time.sleep(self.delay_seconds)
                sink.sendall(data)
                self.passed += 1
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
