"""Calls that run beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection


class Beside(threading.Thread):
    """A call with a connection of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error
        finally:
            connection.close()

    def end(self) -> None:
        self.join(60)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
