"""The read replica, a hot standby of PostgreSQL: the one place that decides which database a read uses.

A read uses the replica only within `read` or `export`, outside of transactions, and only of rows that are shown. What
decides anything uses the primary: policies and what they lie in, users, sessions, and whatever a caller of `read` wraps
in `from_primary`. Whatever fails on the replica is read again on the primary.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.models import Model
from django.http import Http404

from pushhub.common.errors import first_line
from pushhub.common.outages import Cause, outage_of
from pushhub.common.repeats import Repeats

logger = logging.getLogger(__name__)

REPLICA = "replica"
#: Pages tell their age from here on.
TOLD_SECONDS = 5.0
#: An older replica is not read. Gauges and metrics have a row for each minute, and count as missing after three.
MOST_SECONDS = 60.0
#: How long a look at the replica is good, and one that found it unusable.
LOOK_SECONDS, AWAY_SECONDS = 1.0, 5.0
#: How often an export looks whether the replica has caught up.
EXPORT_SECONDS = 0.1

#: The position in the write-ahead log, a time, and what tells one database from another.
_PRIMARY = (
    "SELECT pg_current_wal_insert_lsn() - '0/0', extract(epoch FROM clock_timestamp()),"
    " current_database(), (SELECT system_identifier FROM pg_control_system())"
)
_REPLICA = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() - '0/0' END,"
    " extract(epoch FROM pg_last_xact_replay_timestamp()),"
    " current_database(), (SELECT system_identifier FROM pg_control_system())"
)

P = ParamSpec("P")
Result = TypeVar("Result")
Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True, slots=True)
class State:
    """What a look has found. `age_seconds` is how old the replica's rows are at most."""

    age_seconds: float = 0.0
    #: How far the primary had written, and how much of it the replica had replayed.
    written: int = 0
    replayed: int = 0
    #: Why the replica is not read; "" if it is.
    unusable: str = ""

    @property
    def text(self) -> str:
        if self.unusable:
            return f"{self.unusable}: reads go to the primary"
        return f"it is behind by {self.age_seconds:.0f} s at most"


def ask_both() -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the rows of the primary and of the replica, in this order: the replica has never replayed more."""
    rows = []
    for alias, query in ((DEFAULT_DB_ALIAS, _PRIMARY), (REPLICA, _REPLICA)):
        with connections[alias].cursor() as cursor:
            cursor.execute(query)
            rows.append(cursor.fetchone())
    return rows[0], rows[1]


class Watch:
    """Looks at the replica, for all threads of a process."""

    def __init__(
        self, ask: Callable[[], tuple[tuple[Any, ...], tuple[Any, ...]]] = ask_both, *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._state: State | None = None
        self._good_until = 0.0
        #: When the primary had written how far, for what the replica has not replayed yet.
        self._marks: deque[tuple[float, int]] = deque(maxlen=100)
        #: The last of these times whose writes it has replayed.
        self._replayed_at = float("-inf")
        self._repeats = Repeats(monotonic=monotonic)

    def state(self) -> State:
        """Return what the last look found; one thread looks again when that is no longer good."""
        state = self._state
        if state is not None and self._monotonic() < self._good_until:
            return state
        if not self._lock.acquire(blocking=state is None):
            assert state is not None
            return state
        try:
            return self._look()
        finally:
            self._lock.release()

    def look(self) -> State:
        with self._lock:
            return self._look()

    def failed(self, error: Error) -> None:
        """Note that a read has failed on the replica."""
        with self._lock:
            cause = outage_of(error)
            self._tell(first_line(error), key=cause or type(error))
            if cause is Cause.DATABASE_AWAY and self._state is not None:
                self._keep(replace(self._state, unusable=cause))

    def _look(self) -> State:
        asked_at = self._monotonic()
        try:
            state = self._judge(asked_at, *self._ask())
        except Error as error:
            cause = outage_of(error)
            self._tell(first_line(error), key=cause or type(error))
            state = State(unusable=cause or type(error).__name__)
        else:
            if state.unusable:
                self._tell(state.unusable, key=state.unusable.partition(",")[0])
        return self._keep(state)

    def _judge(self, asked_at: float, primary: tuple[Any, ...], replica: tuple[Any, ...]) -> State:
        written, primary_clock, *server = primary
        replayed, replayed_clock, *replica_server = replica
        if replayed is None:
            return State(unusable="it is no standby")
        if server != replica_server:
            return State(unusable="it is a standby of another database")
        self._marks.append((asked_at, int(written)))
        while self._marks and self._marks[0][1] <= replayed:
            self._replayed_at, _ = self._marks.popleft()
        # Both are upper bounds. An idle primary commits nothing, so the time of the last commit alone would not do.
        by_commit = float("inf") if replayed_clock is None else float(primary_clock - replayed_clock)
        age = max(min(self._monotonic() - self._replayed_at, by_commit), 0.0)
        state = State(age, int(written), int(replayed))
        if state.age_seconds > MOST_SECONDS:
            return replace(state, unusable=f"it is behind by more than {MOST_SECONDS:.0f} s, or nobody knows how far")
        return state

    def _keep(self, state: State) -> State:
        self._state = state
        self._good_until = self._monotonic() + (AWAY_SECONDS if state.unusable else LOOK_SECONDS)
        return state

    def _tell(self, why: str, *, key: object) -> None:
        if count := self._repeats.count(key):
            more = f" (and {count - 1} times since the last such line)" if count > 1 else ""
            logger.warning("the read replica of PUSHHUB_REPLICA_URL is not read, but the primary: %s%s", why, more)


watch = Watch()
#: Within `read`, the state of the replica that it reads.
_reading: ContextVar[State | None] = ContextVar("reading", default=None)


def has_replica() -> bool:
    return REPLICA in settings.DATABASES


def is_replica_read() -> bool:
    return _reading.get() is not None


def read(ask: Callable[[], Result]) -> Result:
    """Return `ask()`, which only reads and shows. It is called again on the primary for what fails on the replica.

    That includes what the replica doesn't have (yet), such as the tables of a migration or the row of a page.
    """
    state = watch.state() if has_replica() else None
    if state is None or state.unusable:
        return ask()
    token = _reading.set(state)
    try:
        return ask()
    except (Http404, ObjectDoesNotExist):
        pass
    except Error as error:
        watch.failed(error)
    finally:
        _reading.reset(token)
    return ask()


def export(write: Callable[[str], Result]) -> Result:
    """Return `write(alias)`, which reads many rows of this database, all that are committed by now among them.

    It is called again with the primary if PostgreSQL cancels it on the replica, as it does for a snapshot that keeps
    the replica from replaying for too long (PostgreSQL's documentation, "Handling Query Conflicts").
    """
    if has_replica() and _catches_up():
        try:
            return write(REPLICA)
        except Error as error:
            watch.failed(error)
    return write(DEFAULT_DB_ALIAS)


def _catches_up() -> bool:
    """Wait until the replica has replayed what is committed now. Return whether it has, in time."""
    state = watch.look()
    wanted, give_up = state.written, time.monotonic() + MOST_SECONDS
    while not state.unusable and state.replayed < wanted and time.monotonic() < give_up:
        time.sleep(EXPORT_SECONDS)
        state = watch.look()
    return not state.unusable and state.replayed >= wanted


def from_primary(func: Callable[P, Result]) -> Callable[P, Result]:
    """Let a function read the primary wherever it is called, as something is decided by what it reads."""

    @wraps(func)
    def reading_primary(*args: P.args, **kwargs: P.kwargs) -> Result:
        token = _reading.set(None)
        try:
            return func(*args, **kwargs)
        finally:
            _reading.reset(token)

    return reading_primary


def primary_row(row: Row) -> Row:
    """Return the row as the primary has it. Raises ObjectDoesNotExist, as on a page whose row has just been deleted."""
    return row if row._state.db != REPLICA else type(row)._base_manager.using(DEFAULT_DB_ALIAS).get(pk=row.pk)


def subtract_age(now: datetime) -> datetime:
    """Return as of when rows are read here: `now` on the primary, and earlier on a replica that may be behind."""
    state = _reading.get()
    return now - timedelta(seconds=state.age_seconds) if state is not None else now


def told_seconds() -> int:
    """Return the age that a page has to tell of its figures, in whole seconds; 0 if it has none to tell."""
    state = _reading.get()
    return round(state.age_seconds) if state is not None and state.age_seconds > TOLD_SECONDS else 0


class Router:
    """Django's router. Who names a database by `using` gets that one."""

    #: The engine's tables, and what its figures are about. All others are small, and policies depend on them.
    SHOWN = frozenset({"subscriptions.Topic", "subscriptions.Subscription"})

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        is_shown = model._meta.app_label == "deliveries" or model._meta.label in self.SHOWN
        if is_shown and is_replica_read() and not connections[DEFAULT_DB_ALIAS].in_atomic_block:
            return REPLICA
        return self.db_for_write(model, **hints)

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        """Return the primary for what follows from a row of the replica; leave anything else to Django."""
        state = getattr(hints.get("instance"), "_state", None)
        return DEFAULT_DB_ALIAS if state is not None and state.db == REPLICA else None

    def allow_relation(self, *_: Any, **__: Any) -> bool:
        return True

    def allow_migrate(self, db: str, *_: Any, **__: Any) -> bool:
        return db != REPLICA
