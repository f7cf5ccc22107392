"""Push window, push backoff and rate limit together: how many messages may be sent."""

from __future__ import annotations

from bench.lane import Lane
from bench.law import Law, rule
from bench.simulate import dead
from deliveries.rules.flow import FREE_LEVEL, Flow, Phase

NOW_MS = 1_790_000_000_000.0


def free(flow: Flow, *, outstanding: int = 0, now_ms: float = NOW_MS) -> int:
    return Law(flow).free(outstanding=outstanding, now_ms=now_ms)


def after_sending(flow: Flow, count: int, *, outstanding: int) -> Law:
    law = Law(flow)
    law.spend(count, outstanding=outstanding, now_ms=NOW_MS)
    return law


def after_nack(flow: Flow, *, repeated: bool = False) -> Flow:
    law = Law(flow)
    law.result(acked=False, latency_ms=5, now_ms=NOW_MS, repeated=repeated)
    return law.flow


def test_a_new_lane_has_the_first_values() -> None:
    law = Law(Flow(window=500.0, nack_share=0.5, backoff_level=9.0))

    law.restart(now_ms=0)

    assert law.flow == Flow()


def test_the_free_tokens_are_the_window_less_what_is_outstanding() -> None:
    assert [free(Flow(window=10.7), outstanding=held) for held in (0, 4, 10, 25)] == [10, 6, 0, 0]


def test_nothing_is_free_during_a_pause() -> None:
    flow = Flow(resume_ms=NOW_MS + 1)

    assert [free(flow, now_ms=now_ms) for now_ms in (NOW_MS, NOW_MS + 1)] == [0, 3]


def test_in_backoff_messages_go_one_at_a_time() -> None:
    flow = Flow(window=500.0, backoff_level=FREE_LEVEL + 0.1, resume_ms=NOW_MS)

    assert [free(flow, outstanding=held) for held in (0, 1)] == [1, 0]


def test_the_beginning_of_a_pause_restarts_the_window_and_keeps_the_means() -> None:
    flow = Flow(window=500.0, phase=Phase.LARGER, base_size=490.0, base_results=490.0, backoff_level=FREE_LEVEL)

    paused = after_nack(flow)

    assert paused.resume_ms > NOW_MS
    assert (paused.phase, paused.window, paused.round_size) == (Phase.SLOW_START, 1, 1)
    assert (paused.round_began_ms, paused.base_size, paused.base_results) == (paused.resume_ms, 0, 0)
    assert (paused.latency_ms, paused.ack_ratio, paused.results_seen) == (5, 0, 1)


def test_a_nack_that_starts_no_pause_does_not_restart_it() -> None:
    assert after_nack(Flow(window=500.0)).window == 499


def test_a_cap_and_a_rate_bound_what_is_free() -> None:
    flow = Flow(window=500.0, cap=50)

    assert free(flow, outstanding=10) == 40
    assert free(flow._replace(rate=5.0, burst=7.0), outstanding=10) == 7


def test_sending_takes_tokens_from_the_bucket_and_shows_how_much_of_the_window_is_used() -> None:
    sent = after_sending(Flow(rate=5.0), 5, outstanding=9)

    assert sent.flow.round_peak == 9
    assert free(sent.flow) == 0
    assert sent.bucket_wait_ms(now_ms=NOW_MS) == NOW_MS + 200
    assert sent.bucket_wait_ms(now_ms=NOW_MS + 200) is None


def test_without_a_rate_nothing_waits_for_the_bucket() -> None:
    assert Law().bucket_wait_ms(now_ms=NOW_MS) is None


def test_nacks_make_a_gap_between_deliveries() -> None:
    flow = Flow(window=500.0, nack_share=0.2, gap_ms=500.0)

    sent = after_sending(flow, 1, outstanding=1)

    assert free(flow) == 1
    assert [free(sent.flow, now_ms=NOW_MS + later) for later in (499, 500)] == [0, 1]
    assert sent.bucket_wait_ms(now_ms=NOW_MS) == NOW_MS + 500


def test_the_slower_of_the_gap_and_the_own_rate_limit_counts() -> None:
    flow = Flow(window=500.0, nack_share=0.1, gap_ms=5.0)

    slower = after_sending(flow._replace(rate=10.0), 1, outstanding=1)
    faster = after_sending(flow._replace(rate=10_000.0), 10, outstanding=10)

    assert slower.bucket_wait_ms(now_ms=NOW_MS) == NOW_MS + 100
    assert faster.bucket_wait_ms(now_ms=NOW_MS) == NOW_MS + 5


def test_the_pause_or_the_gap_holds_the_next_delivery_back() -> None:
    both = Flow(gap_ms=500.0, resume_ms=NOW_MS + 900)

    for flow, now_ms, pause_ms in [(both, NOW_MS, 900), (both, NOW_MS + 800, 500), (Flow(), NOW_MS, 0)]:
        # The console's own arithmetic, and that of the worker
        assert flow.pause_ms(now_ms=now_ms) == Law(flow).pause_ms(now_ms=now_ms) == pause_ms


#: A lane that has learned that some messages are bad: their retries fail, while the others are acked.
POISONED = Flow(window=500.0, round_size=500.0, phase=Phase.REST, nack_share=0.1, retry_nacks=0.9, poisoned=1.0)


def test_a_retry_that_fails_while_others_are_acked_moves_neither_window_nor_share() -> None:
    assert after_nack(POISONED, repeated=True).window == 500
    assert after_nack(POISONED, repeated=False).window == 499
    # At an endpoint that fails by chance a retry tells as much as any other message
    assert after_nack(POISONED._replace(retry_nacks=0.2, poisoned=0.0), repeated=True).window == 499


def test_failing_retries_show_bad_messages_and_acked_ones_an_endpoint_that_fails_by_chance() -> None:
    law = Law(Flow(window=500.0, results_seen=100.0))
    told = []
    for acked in [False] * 8 + [True] * 8:
        law.result(acked=acked, latency_ms=5, now_ms=NOW_MS, repeated=True)
        told.append(law.flow.poisoned)

    assert told[0] == 0
    assert told[7] == 1
    assert told[-1] == 0


def test_an_endpoint_that_has_acked_nothing_is_not_taken_for_bad_messages() -> None:
    told = Lane(dead(), waiting=3).run(600)

    assert not any(sample.poisoned for sample in told.samples)
    assert told.samples[-1].level > FREE_LEVEL


def test_an_endpoint_that_nacks_first_attempts_as_often_is_not_taken_for_bad_messages() -> None:
    law = Law(Flow(window=500.0, results_seen=100.0, first_nacks=0.8))
    for _ in range(30):
        law.result(acked=False, latency_ms=5, now_ms=NOW_MS, repeated=True)
        law.state["backoff_level"] = 0

    assert law.flow.poisoned == 0


def test_retries_of_bad_messages_get_a_tenth_of_the_tokens() -> None:
    law = Law(POISONED._replace(retry_credit=450.0))

    assert law.retries(200) == (50, 50)
    law.spend(50, retries=50, outstanding=300, now_ms=NOW_MS)
    assert law.retries(200) == (0, 0)
    law.give_back(repeated=True)
    # A retry may take the token, but other messages go first
    assert law.retries(200) == (1, 0)
    assert Law(Flow(window=500.0)).retries(200) == (200, 200)


def test_a_retry_of_a_bad_message_goes_out_for_nine_others() -> None:
    law = Law(POISONED._replace(window=1.0))
    sent = []
    for _ in range(40):
        retries = law.retries(1)[1]
        law.spend(1, retries=retries, outstanding=1, now_ms=NOW_MS)
        law.give_back(repeated=retries == 1)
        sent.append(retries)

    assert sent == [*[0] * 9, 1] * 4


def test_in_backoff_retries_and_others_take_turns() -> None:
    law = Law(Flow(backoff_level=FREE_LEVEL))
    law.result(acked=False, latency_ms=5, now_ms=NOW_MS)
    sent = []
    for _ in range(4):
        retries = law.retries(1)[1]
        law.spend(1, retries=retries, outstanding=1, now_ms=NOW_MS)
        law.give_back(repeated=retries == 1)
        law.result(acked=False, latency_ms=5, now_ms=law.flow.resume_ms + 5, repeated=retries == 1)
        sent.append(retries)

    assert sent == [1, 0, 1, 0]


def test_bad_messages_make_no_gap() -> None:
    gaps = []
    for flow in (POISONED._replace(retry_nacks=1.0), POISONED._replace(retry_nacks=0.1)):
        law = Law(flow._replace(nack_share=0.2, round_results=20.0, round_nacks=4.0))
        rule("share_learn")(law.state)
        gaps.append(law.flow.gap_ms)

    assert gaps[0] == 0
    assert gaps[1] > 400
