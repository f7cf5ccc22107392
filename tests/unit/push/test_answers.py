"""What a push worker keeps of failing answers is bounded in each minute, and no subscription takes it all."""

from __future__ import annotations

from deliveries.push.sending.delivery import ALL, NOT_KEPT, ONE, KeptAnswers


def test_a_subscription_gets_its_part_and_all_of_them_the_whole() -> None:
    now = 0.0
    kept = KeptAnswers(monotonic=lambda: now)
    half = "x" * (ONE // 2)
    for subscription_id in range(ALL // ONE):
        assert [kept.keep(subscription_id, half) for _ in range(3)] == [half, half, NOT_KEPT]
    assert kept.keep(100, "x") == NOT_KEPT
    now = 60.0
    assert kept.keep(100, "x") == "x"
