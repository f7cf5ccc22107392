"""How far a replica is behind, and when it is not read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, ProgrammingError, connections
from django.db.models import Model
from django.http import Http404

from deliveries.inspection.counting import added_up_once
from deliveries.telemetry.export.probes import Component, Status
from deliveries.telemetry.export.readiness import overall
from deliveries.telemetry.series.coverage import Counting
from pushhub.common import replica
from pushhub.common.replica import AWAY_SECONDS, LOOK_SECONDS, MOST_SECONDS, Router, State, Watch
from subscriptions.models import Project, Topic

SERVER = ("pushhub", 7)


class Servers:
    """A primary and a standby at a time; `committed_at` is when the last transaction that is replayed was committed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.written = 100
        self.replayed: int | None = 100
        self.committed_at: float | None = None
        self.server = SERVER
        self.error: OperationalError | None = None
        self.asked = 0
        self.watch = Watch(self._ask, monotonic=lambda: self.now)

    def _ask(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return (self.written, self.now, *SERVER), (self.replayed, self.committed_at, *self.server)

    def age(self, *, after: float = LOOK_SECONDS) -> float:
        self.now += after
        return self.watch.look().age_seconds


@pytest.fixture
def servers() -> Servers:
    return Servers()


def test_a_replica_that_has_replayed_everything_is_of_now_however_long_nothing_was_committed(servers: Servers) -> None:
    servers.committed_at = servers.now
    assert servers.age(after=86_400) == 0


def test_a_replica_that_stands_still_ages(servers: Servers) -> None:
    servers.age()
    servers.written = 200
    assert [servers.age(after=2) for _ in range(3)] == [2, 4, 6]
    # It catches up with what was written at the first of these looks
    servers.replayed, servers.written = 200, 300
    assert servers.age(after=2) == 2
    servers.replayed = 300
    assert servers.age() == 0


def test_a_replica_that_is_always_a_little_behind_is_as_old_as_its_last_transaction(servers: Servers) -> None:
    servers.age()
    for _ in range(5):
        servers.written += 100
        servers.replayed = servers.written - 1
        servers.committed_at = servers.now + 600 - 0.5
        assert servers.age(after=600) == 0.5


def test_a_replica_of_unknown_age_is_not_read(servers: Servers) -> None:
    servers.written = 200
    assert "behind" in servers.watch.look().unusable
    servers.committed_at = servers.now - MOST_SECONDS + 1
    assert not servers.watch.look().unusable


def test_a_replica_that_is_too_old_is_not_read(servers: Servers) -> None:
    servers.age()
    servers.written = 200
    assert [bool(servers.age(after=seconds) and servers.watch.look().unusable) for seconds in (MOST_SECONDS, 1)] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("replayed", "server", "why"),
    [
        (None, SERVER, "it is no standby"),
        (100, ("pushhub", 8), "another database"),
        (100, ("other", 7), "another database"),
    ],
)
def test_what_is_no_standby_of_the_primary_is_not_read(
    servers: Servers, replayed: int | None, server: tuple[str, int], why: str
) -> None:
    servers.replayed, servers.server = replayed, server
    assert why in servers.watch.look().unusable


def test_a_look_is_kept_for_a_while_and_a_line_a_minute_tells_of_an_outage(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    servers.watch.state()
    servers.watch.state()
    assert servers.asked == 1
    servers.error = OperationalError("no route")
    servers.now += LOOK_SECONDS
    for _ in range(30):
        assert servers.watch.state().unusable == "the database cannot be reached"
        servers.now += AWAY_SECONDS / 2
    assert servers.asked == 1 + 15
    assert [record.getMessage().partition(" (and ")[2] for record in caplog.records] == [
        "",
        "11 times since the last such line)",
    ]
    assert all(record.exc_info is None for record in caplog.records)


def test_nothing_asks_for_a_replica_that_is_not_set() -> None:
    assert replica.read(lambda: "read") == "read"
    assert replica.export(lambda alias: alias) == "default"


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is 7 s behind."""
    monkeypatch.setattr(replica, "has_replica", lambda: True)
    monkeypatch.setattr(replica, "watch", watch := Watch())
    monkeypatch.setattr(watch, "state", lambda: State(age_seconds=7.2))


def alias_of(model: type[Model]) -> str:
    return Router().db_for_read(model) or "default"


@pytest.mark.usefixtures("used")
def test_only_what_is_shown_is_read_from_the_replica_and_only_there() -> None:
    assert {alias_of(model) for model in apps.get_models()} == {"default"}
    own = replica.read(lambda: {model._meta.label for model in apps.get_models() if alias_of(model) == "replica"})
    assert {label for label in own if not label.startswith("deliveries.")} == {
        "subscriptions.Subscription",
        "subscriptions.Topic",
    }
    assert {"deliveries.Delivery", "deliveries.GaugeMinute"} <= own
    assert replica.read(lambda: replica.from_primary(alias_of)(Topic)) == "default"
    # A transaction reads what it writes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections["default"], "in_atomic_block", True)
        assert replica.read(lambda: alias_of(Topic)) == "default"


@pytest.mark.usefixtures("used")
def test_what_follows_from_a_row_of_the_replica_is_of_the_primary() -> None:
    topic = Topic(pk=1)
    topic._state.db = "replica"
    assert Router().db_for_write(Topic, instance=topic) == Router().db_for_read(Project, instance=topic) == "default"
    assert Router().db_for_write(Topic) is None
    assert [Router().allow_migrate(db, "deliveries") for db in ("default", "replica")] == [True, False]


@pytest.mark.usefixtures("used")
def test_the_age_is_told_where_the_replica_is_read() -> None:
    now = datetime(2026, 11, 27, tzinfo=UTC)
    assert replica.read(lambda: (replica.told_seconds(), replica.subtract_age(now))) == (
        7,
        now - timedelta(seconds=7.2),
    )
    assert (replica.told_seconds(), replica.subtract_age(now)) == (0, now)


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("error", [Http404, Topic.DoesNotExist, ProgrammingError("no such column"), OperationalError])
def test_what_fails_on_the_replica_is_read_on_the_primary(error: Exception) -> None:
    aliases = []

    def ask() -> str:
        aliases.append(alias_of(Topic))
        if aliases[-1] == "replica":
            raise error
        return "read"

    assert replica.read(ask) == "read"
    assert aliases == ["replica", "default"]


@pytest.mark.usefixtures("used")
def test_who_reads_the_primary_gets_no_sum_of_the_replica() -> None:
    state = Counting("embedded", None, 0, runs=True)
    now = datetime(2026, 11, 27, tzinfo=UTC)

    def alias() -> str:
        return added_up_once(lambda: alias_of(Topic), "who reads", state=state, now=now)

    assert [replica.read(alias), alias(), replica.read(alias)] == ["replica", "default", "replica"]


@pytest.mark.usefixtures("used")
def test_an_error_of_both_is_the_callers() -> None:
    def ask() -> None:
        raise OperationalError

    with pytest.raises(OperationalError):
        replica.read(ask)
    assert alias_of(Topic) == "default"


@pytest.mark.parametrize("status", [Status.DEGRADED, Status.UNAVAILABLE])
def test_no_state_of_a_replica_makes_pushhub_unready(status: Status) -> None:
    assert overall({"database": Component(Status.OK), "replica": Component(status)}) == Status.DEGRADED
    assert overall({"database": Component(Status.UNAVAILABLE), "replica": Component(status)}) == Status.UNAVAILABLE
    assert overall({"database": Component(Status.OK), "replica": Component(Status.OK)}) == Status.OK
