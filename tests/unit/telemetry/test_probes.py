"""Probes: results before a deadline, and one thread for a check that hangs."""

from __future__ import annotations

import threading

from deliveries.telemetry.export.probes import Component, Probes, Status


def test_a_check_that_hangs_is_unavailable_and_is_not_started_again() -> None:
    release, starts = threading.Event(), []

    def hang() -> Component:
        starts.append(1)
        release.wait()
        return Component(Status.OK)

    probes = Probes({"hangs": hang, "works": lambda: Component(Status.OK)}, deadline_seconds=0.05)
    try:
        for _ in range(3):
            assert probes.results()["hangs"] == Component(Status.UNAVAILABLE, "no answer in time")
        assert len(starts) == 1
    finally:
        release.set()


def test_an_exception_is_named_by_its_type_alone() -> None:
    def fail() -> Component:
        raise ValueError("postgres://user:password@host")

    probes = Probes({"fails": fail}, deadline_seconds=10)
    assert probes.results() == {"fails": Component(Status.UNAVAILABLE, "ValueError")}


def test_an_excluded_check_is_not_run() -> None:
    def fail() -> Component:
        raise AssertionError

    assert Probes({"fails": fail}, deadline_seconds=10).results(exclude=frozenset({"fails"})) == {}
