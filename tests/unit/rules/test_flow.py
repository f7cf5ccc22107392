"""Push window, push backoff and rate limit together: how many messages may be sent."""

from __future__ import annotations

from deliveries.rules import flow as rules
from deliveries.rules.backoff import FREE_LEVEL, Backoff
from deliveries.rules.flow import Flow
from deliveries.rules.share import Share
from deliveries.rules.window import Phase, Round, Window

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
    assert paused.window.round == Round(Phase.SLOW_START, paused.backoff.resume_ms, size=1.0)


def test_a_nack_that_starts_no_pause_does_not_restart_it() -> None:
    flow = rules.result(Flow(window=Window(size=500.0)), acked=False, latency_ms=5, now_ms=NOW_MS, dice=0.5)

    assert flow.window.size > 1


def test_a_cap_and_a_rate_bound_what_is_free() -> None:
    flow = Flow(window=Window(size=500.0), cap=50)
    assert rules.free(flow, outstanding=10, now_ms=NOW_MS) == 40

    limited = flow._replace(rate=5.0, burst=7.0)
    assert rules.free(limited, outstanding=10, now_ms=NOW_MS) == 7


def test_sending_takes_tokens_from_the_bucket_and_shows_how_much_of_the_window_is_used() -> None:
    flow = rules.sent(Flow(rate=5.0), count=5, outstanding=9, now_ms=NOW_MS)

    assert flow.window.round.peak == 9
    assert rules.free(flow, outstanding=0, now_ms=NOW_MS) == 0
    assert rules.bucket_wait_ms(flow, now_ms=NOW_MS) == NOW_MS + 200
    assert rules.bucket_wait_ms(flow, now_ms=NOW_MS + 200) is None


def test_without_a_rate_nothing_waits_for_the_bucket() -> None:
    assert rules.bucket_wait_ms(Flow(), now_ms=NOW_MS) is None


def test_nacks_make_a_gap_between_deliveries() -> None:
    flow = Flow(window=Window(size=500.0, share=Share(0.2, gap_ms=500.0)))

    sent = rules.sent(flow, count=1, outstanding=1, now_ms=NOW_MS)

    assert rules.free(flow, outstanding=0, now_ms=NOW_MS) == 1
    assert rules.free(sent, outstanding=0, now_ms=NOW_MS + 499) == 0
    assert rules.free(sent, outstanding=0, now_ms=NOW_MS + 500) == 1
    assert rules.bucket_wait_ms(sent, now_ms=NOW_MS) == NOW_MS + 500


def test_the_slower_of_the_gap_and_the_own_rate_limit_counts() -> None:
    gap = Window(size=500.0, share=Share(0.1, gap_ms=5.0))

    slower = rules.sent(Flow(window=gap, rate=10.0), count=1, outstanding=1, now_ms=NOW_MS)
    faster = rules.sent(Flow(window=gap, rate=10_000.0), count=10, outstanding=10, now_ms=NOW_MS)

    assert rules.bucket_wait_ms(slower, now_ms=NOW_MS) == NOW_MS + 100
    assert rules.bucket_wait_ms(faster, now_ms=NOW_MS) == NOW_MS + 5


def test_the_pause_or_the_gap_holds_the_next_delivery_back() -> None:
    flow = Flow(window=Window(share=Share(0.2, gap_ms=500.0)), backoff=Backoff(resume_ms=NOW_MS + 900))

    assert rules.pause_ms(flow, now_ms=NOW_MS) == 900
    assert rules.pause_ms(flow, now_ms=NOW_MS + 800) == 500
    assert rules.pause_ms(Flow(), now_ms=NOW_MS) == 0


def test_a_message_that_has_failed_twice_moves_neither_window_nor_share() -> None:
    flow = Flow(window=Window(size=500.0, round=Round(size=500.0)))

    for attempt, size in [(1, 499), (2, 499), (3, 500), (4, 500)]:
        nacked = rules.result(
            flow, acked=False, latency_ms=5, now_ms=NOW_MS, dice=0.5, repeated=rules.is_repeated(attempt)
        )
        assert nacked.window.size == size
