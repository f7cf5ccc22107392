"""Push window, push backoff and rate limit together: how many messages may be sent off."""

from __future__ import annotations

from dataclasses import replace

from deliveries.rules import flow as rules
from deliveries.rules.backoff import FREE_LEVEL, Backoff
from deliveries.rules.flow import Flow
from deliveries.rules.window import Window

NOW_MS = 1_790_000_000_000.0


def test_the_free_tokens_are_the_window_less_what_is_outstanding() -> None:
    flow = Flow(window=Window(size=10.7))

    assert [rules.free(flow, outstanding=held, now_ms=NOW_MS) for held in (0, 4, 10, 25)] == [10, 6, 0, 0]


def test_nothing_is_free_during_a_pause() -> None:
    flow = Flow(backoff=Backoff(resume_ms=NOW_MS + 1))

    assert rules.free(flow, outstanding=0, now_ms=NOW_MS) == 0
    assert rules.free(flow, outstanding=0, now_ms=NOW_MS + 1) == 3


def test_in_backoff_messages_go_one_at_a_time() -> None:
    flow = Flow(window=Window(size=500.0), backoff=Backoff(level=FREE_LEVEL + 0.1, resume_ms=NOW_MS))

    assert rules.free(flow, outstanding=0, now_ms=NOW_MS) == 1
    assert rules.free(flow, outstanding=1, now_ms=NOW_MS) == 0


def test_the_beginning_of_a_pause_restarts_the_window() -> None:
    flow = Flow(window=Window(size=500.0), backoff=Backoff(level=FREE_LEVEL))

    paused = rules.result(flow, acked=False, latency_ms=5, now_ms=NOW_MS, dice=0.5)

    assert paused.backoff.resume_ms > NOW_MS
    assert paused.window.size == 1


def test_a_nack_that_starts_no_pause_does_not_restart_it() -> None:
    flow = rules.result(Flow(window=Window(size=500.0)), acked=False, latency_ms=5, now_ms=NOW_MS, dice=0.5)

    assert flow.window.size > 1


def test_a_cap_and_a_rate_bound_what_is_free() -> None:
    flow = Flow(window=Window(size=500.0), cap=50)
    assert rules.free(flow, outstanding=10, now_ms=NOW_MS) == 40

    limited = replace(flow, rate=5.0, burst=7.0)
    assert rules.free(limited, outstanding=10, now_ms=NOW_MS) == 7


def test_what_was_sent_is_taken_from_the_bucket_and_says_how_far_the_window_is_used() -> None:
    flow = rules.sent(Flow(rate=5.0), count=5, outstanding=9, now_ms=NOW_MS)

    assert flow.peak == 9
    assert rules.free(flow, outstanding=0, now_ms=NOW_MS) == 0
    assert rules.bucket_wait_ms(flow, now_ms=NOW_MS) == NOW_MS + 200
    assert rules.bucket_wait_ms(flow, now_ms=NOW_MS + 200) is None


def test_without_a_rate_nothing_waits_for_the_bucket() -> None:
    assert rules.bucket_wait_ms(Flow(), now_ms=NOW_MS) is None
