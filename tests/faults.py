"""Faults in the calls to the database and to Redis that PushHub's code makes in the test's own process."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg.errors
import pytest
import redis
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from deliveries.backlog import scripts
from subscriptions.iam import epoch
from tests.drivererrors import as_django_raises

#: Where calls leave this process: what each belongs to, its class or module, and the name there.
CALLS = (
    ("database", CursorWrapper, "execute"),
    ("database", CursorWrapper, "executemany"),
    ("database", BaseDatabaseWrapper, "_commit"),
    ("Redis", redis.Redis, "execute_command"),
    ("Redis", redis.client.Pipeline, "execute"),
    ("Redis", scripts, "_send_together"),
)
#: Called for each call, with the name of what it belongs to and the method; raises the fault.
Note = Callable[[str, str], None]


def watch(monkeypatch: pytest.MonkeyPatch, note: Note) -> None:
    """Call `note` before each call."""
    for owner, kind, name in CALLS:
        monkeypatch.setattr(kind, name, _watched(owner, name, getattr(kind, name), note))


def _watched(owner: str, name: str, call: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        note(owner, name)
        return call(*args, **kwargs)

    return watched


class Faults:
    """Counts the calls within a block, and raises an error instead of one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owners: list[str] = []
        self._errors: dict[str, BaseException] = {}
        self._at = -1
        self._is_on = False
        # A change whose epoch can't be written waits until nobody uses what was kept before: tests/integration/iam.
        monkeypatch.setattr(epoch, "KEPT_SECONDS", 0.0)
        watch(monkeypatch, self._note)

    @contextmanager
    def at(self, number: int = -1, **errors: BaseException) -> Iterator[None]:
        """Raise the error of `database` or `Redis` instead of the call of this number; -1 raises none."""
        self.owners, self._at, self._errors, self._is_on = [], number, errors, True
        try:
            yield
        finally:
            self._is_on = False
            # The errors raised here left no connection broken.
            connection.errors_occurred = False
            # A cursor that is left half-read, as a variable of a frame, is closed before its connection.
            for error in errors.values():
                traceback.clear_frames(error.__traceback__)

    @property
    def was_raised(self) -> bool:
        return len(self.owners) > self._at >= 0

    def _note(self, owner: str, name: str) -> None:
        # The counters of metrics are flushed by a thread of their own.
        if not self._is_on or threading.current_thread() is not threading.main_thread():
            return
        self.owners.append(owner)
        if len(self.owners) - 1 == self._at:
            raise self._errors[owner]


def outage_errors(number: int) -> dict[str, BaseException]:
    """Return an outage of each kind; they take turns."""
    databases = ("AdminShutdown", "ReadOnlySqlTransaction", "DiskFull", "LockNotAvailable")
    redises = (redis.ConnectionError, redis.OutOfMemoryError, redis.exceptions.ReadOnlyError, redis.TimeoutError)
    return {
        "database": as_django_raises(getattr(psycopg.errors, databases[number % len(databases)])("no")),
        "Redis": redises[number % len(redises)]("no"),
    }
