"""The share of nacks that load does not explain, and the gap between deliveries that it causes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from bench.law import Law, rule
from deliveries.rules.flow import Flow

#: As after a thousand results.
KNOWN = Flow(nack_share_seen=rule("SHARE_MEMORY"))


def after(flow: Flow, rounds: int, *, nacks: float, results: float = 20, window: float = 1) -> float:
    """Return the share of nacks after rounds with these numbers of nacks and results in this window."""
    law = Law(flow._replace(round_nacks=nacks, round_results=results, round_size=window))
    for _ in range(rounds):
        rule("share_learn")(law.state)
    return law.flow.nack_share


def gap_ms(share: float) -> float:
    return float(rule("gap_of")(share))


def test_the_push_page_has_one_delivery_in_500_ms_at_one_nack_in_five() -> None:
    assert gap_ms(0.2) == pytest.approx(500, rel=0.15)


@pytest.mark.parametrize("percent", [0, 1, 2, 3])
def test_few_nacks_make_no_gap(percent: int) -> None:
    assert gap_ms(percent / 100) == 0


def test_no_point_of_the_share_makes_the_gap_more_than_twice_as_long_from_6_to_20_percent() -> None:
    gaps = [gap_ms(percent / 100) for percent in range(6, 21)]

    assert all(1 < after / before < 2 for before, after in pairwise(gaps))


def test_the_gap_has_no_jump() -> None:
    gaps = [gap_ms(thousandths / 1000) for thousandths in range(0, 1001)]

    assert gaps == sorted(gaps)
    assert all(later - earlier < 0.06 * later + 0.05 for earlier, later in pairwise(gaps))
    assert gap_ms(1.0) == gap_ms(rule("LAST")) < 5000


def test_the_share_of_a_new_lane_is_soon_a_mean_over_its_results() -> None:
    # A mean over all results and the twenty acks that a new lane begins with would be at 0.182
    assert after(Flow(), 10, nacks=4) == pytest.approx(0.2, rel=0.05)


def test_a_known_share_is_a_mean_over_the_last_results() -> None:
    share = after(KNOWN._replace(nack_share=0.1), 1, nacks=20)

    assert share == pytest.approx(0.1 + 0.9 * 20 / rule("SHARE_MEMORY"))


def test_a_good_lane_that_begins_to_fail_learns_its_share_as_a_new_one() -> None:
    assert after(KNOWN, 10, nacks=4) == pytest.approx(0.2, rel=0.05)


def test_a_round_of_thousands_of_nacks_moves_the_share_little() -> None:
    assert after(KNOWN, 1, nacks=3000, results=3000, window=3000) == pytest.approx(1 / rule("ROUND_MEMORY"))


def test_a_large_share_is_forgotten_faster_than_a_small_one() -> None:
    large = after(KNOWN._replace(nack_share=0.6), 1, nacks=0)
    small = after(KNOWN._replace(nack_share=0.1), 1, nacks=0)

    assert large / 0.6 < small / 0.1 < 1


def test_the_share_stays_within_0_and_1() -> None:
    assert after(Flow(nack_share=0.99), 50, nacks=20) <= 1
    assert after(Flow(nack_share=0.01), 50, nacks=0) >= 0
