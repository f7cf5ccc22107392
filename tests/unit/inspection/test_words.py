"""The one sentence that says why messages wait and when the next attempt is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.utils import translation

from deliveries.backlog.codes import Mode
from deliveries.inspection import texts, words
from deliveries.inspection.conditions import Condition
from deliveries.inspection.lanes import LaneView, condition_of
from deliveries.inspection.outcomes import Outcomes
from deliveries.inspection.status import SubscriptionStatus, next_attempt_ms
from pushhub.common.clock import duration_text
from pushhub.common.outages import Cause

LANE = LaneView(
    region="local",
    is_known=True,
    mode=Mode.PUSH,
    outstanding=0,
    window=10,
    cap=0,
    is_rate_spent=False,
    is_backing_off=False,
    pause_ms=0,
    gap_ms=0,
    results=20,
    ack_share=0.4,
    nack_share=0.6,
    acked_ms_ago=None,
    is_spilled=False,
    has_messages=True,
    ready=1,
    retrying=0,
    retry_ids=[],
    retry_in_ms=None,
    asked_ms_ago=None,
    silent_seconds=1,
)


@pytest.mark.parametrize(
    ("fields", "condition"),
    [
        ({}, Condition.DELIVERING),
        ({"silent_seconds": None}, Condition.NO_WORKER),
        ({"silent_seconds": 16, "pause_ms": 100}, Condition.NO_WORKER),
        ({"silent_seconds": 16, "pause_ms": 100, "is_adopted": True}, Condition.BACKING_OFF),
        ({"silent_seconds": None, "is_elsewhere": True}, Condition.ELSEWHERE),
        ({"pause_ms": 100}, Condition.BACKING_OFF),
        ({"is_backing_off": True}, Condition.BACKING_OFF),
        ({"gap_ms": 500}, Condition.SLOWED),
        ({"retrying": 2, "retry_in_ms": 10}, Condition.RETRYING),
        ({"retrying": 2, "outstanding": 3}, Condition.DELIVERING),
        ({"outstanding": 10}, Condition.WINDOW_FULL),
        ({"outstanding": 2, "cap": 2}, Condition.LIMITED),
        ({"is_rate_spent": True}, Condition.LIMITED),
        # All of its messages are on their way.
        ({"outstanding": 10, "ready": 0}, Condition.DELIVERING),
        ({"outstanding": 2, "cap": 2, "is_rate_spent": True, "ready": 0}, Condition.DELIVERING),
    ],
)
def test_a_lane_has_one_condition(fields: dict[str, Any], condition: Condition) -> None:
    assert condition_of(replace(LANE, **fields)) == condition


def status(condition: Condition, lane: LaneView | None = LANE, **fields: Any) -> SubscriptionStatus:
    shared = {"undelivered": 7, "oldest_age_seconds": 60.0, "lanes": [lane] if lane else [], "lane": lane}
    return SubscriptionStatus(condition=condition, **{**shared, **fields})


@pytest.mark.parametrize(
    ("pause_ms", "beginning", "card"),
    [
        (17_600.0, "Paused by push backoff after", "18 s"),
        (0.0, "The push backoff lets one message at a time through after", "one at a time"),
    ],
)
def test_the_sentence_and_the_card_tell_the_same_of_the_push_backoff(
    pause_ms: float, beginning: str, card: str
) -> None:
    lane = replace(LANE, is_backing_off=True, pause_ms=pause_ms, retry_in_ms=18_000.0, ready=0)
    condition = condition_of(lane)
    backing_off = status(condition, lane, last_result="503", next_attempt_ms=next_attempt_ms(condition, lane))
    assert words.status_sentence(backing_off) == (
        f"{beginning} 12 of the last 20 pushes failed, most recently with 503; next attempt in 18 s."
    )
    assert words.backoff_text(lane) == card


@pytest.mark.parametrize(
    ("ack_share", "failed", "remedy"),
    [
        (
            0.0,
            f"; 20 of the last 20 pushes failed, most recently with {texts.result_text('deadline_exceeded')}",
            "Answer before the ack deadline, or raise the deadline.",
        ),
        (1.0, "", "Answer faster; the window grows with acks."),
    ],
)
def test_a_full_window_does_not_hide_that_pushes_fail(ack_share: float, failed: str, remedy: str) -> None:
    lane = replace(LANE, outstanding=10, ack_share=ack_share)
    last_result = "deadline_exceeded" if failed else ""
    [finding] = words.findings_of(status(Condition.WINDOW_FULL, lane, last_result=last_result))
    assert finding.sentence == f"The push window is full, so the rest waits. Outstanding messages: 10{failed}."
    assert finding.remedy == remedy


@pytest.mark.parametrize("others", [{"ready": 1}, {"is_spilled": True}])
def test_the_next_attempt_is_that_of_a_message_which_has_not_failed_if_there_is_one(others: dict[str, Any]) -> None:
    lane = replace(LANE, is_backing_off=True, pause_ms=400.0, retry_in_ms=600_000.0, retrying=4, ready=0)
    assert next_attempt_ms(Condition.BACKING_OFF, lane) == 600_000.0
    assert next_attempt_ms(Condition.BACKING_OFF, replace(lane, **others)) == 400.0


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        (Condition.BACKING_OFF, "Look at the endpoint's own log: the fault is there."),
        (
            Condition.NO_WORKER,
            "Start a push worker with PUSHHUB_REGION=local.",
        ),
        (Condition.LIMITED, "Raise the limit, or wait."),
    ],
)
def test_an_old_answer_of_the_endpoint_is_no_remedy_for_what_it_did_not_cause(
    condition: Condition, remedy: str
) -> None:
    [finding] = words.findings_of(status(condition, last_result="503"))
    assert finding.remedy == remedy


@pytest.mark.parametrize(
    ("undelivered", "words_of_it"),
    [(10_000, "take 83 min: 10000."), (10_001, "take more than 83 min: more than 10,000.")],
)
def test_the_time_that_all_waiting_messages_take_is_not_told_of_those_that_were_counted_alone(
    undelivered: int, words_of_it: str
) -> None:
    slowed = status(Condition.SLOWED, replace(LANE, gap_ms=500), undelivered=undelivered)
    assert words.status_sentence(slowed).endswith(f"the waiting messages {words_of_it}")


@pytest.mark.parametrize(
    ("outstanding", "text"), [(1, "the next attempt is under way"), (0, "the next attempt is due")]
)
def test_an_attempt_is_under_way_only_if_a_message_is(outstanding: int, text: str) -> None:
    lane = replace(LANE, is_backing_off=True, outstanding=outstanding)
    assert words.status_sentence(status(Condition.BACKING_OFF, lane, next_attempt_ms=0.0)).endswith(f"; {text}.")


def test_one_server_of_a_cluster_may_be_all_that_is_away(settings: Any) -> None:
    settings.REDIS_URL = "redis+cluster://127.0.0.1:7000"
    assert texts.redis_text(Cause.REDIS_AWAY) == "Redis cannot be reached (at least one of its servers)"


def test_a_reason_is_explained_in_words() -> None:
    retrying = status(Condition.RETRYING, last_result="connect_failed", next_attempt_ms=400.0)
    assert words.status_sentence(retrying) == (
        "Waiting for a retry after 12 of the last 20 pushes failed, most recently with "
        "connect_failed (no connection was accepted); "
        "next attempt in 400 ms."
    )


@pytest.mark.parametrize(
    ("outcomes", "level", "sentence"),
    [
        (Outcomes(), "", "Nothing waits. No message was counted in the last 24 hours."),
        (
            Outcomes(acknowledged=3, filtered=2),
            "good",
            "Nothing waits. Counted in the last 24 hours: 3 acknowledged, 2 filtered out.",
        ),
        (
            Outcomes(dead_lettered=4, dropped=1, dead_letters_waiting=4),
            "warn",
            "Nothing waits. Counted in the last 24 hours: 4 dead-lettered, 1 expired, revoked or skipped. "
            "Dead letters that nobody has dealt with: 4.",
        ),
    ],
)
def test_what_became_of_messages_that_no_longer_wait_is_said(
    outcomes: Outcomes, level: str, sentence: str, settings: Any
) -> None:
    settings.JOURNAL = "/nowhere"
    idle = status(outcomes.condition, undelivered=0, outcomes=outcomes)
    assert (idle.worst_level, words.status_sentence(idle)) == (level, sentence)


def test_without_a_journal_nothing_is_said_of_messages_that_no_longer_wait(settings: Any) -> None:
    settings.JOURNAL = ""
    idle = status(Outcomes().condition, undelivered=0, outcomes=Outcomes())
    assert words.status_sentence(idle) == (
        "Nothing waits. The journal is switched off (PUSHHUB_JOURNAL), so nothing is counted."
    )


@pytest.mark.parametrize("condition", Condition)
def test_every_condition_has_a_sentence_in_both_languages(condition: Condition) -> None:
    shown = status(condition, last_result="503", next_attempt_ms=100.0)
    english = words.status_sentence(shown)
    with translation.override("zh-hans"):
        chinese = words.status_sentence(shown)
    assert english.endswith(".") and chinese.endswith("。") and "%(" not in english + chinese


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(999, "999 ms"), (5300, "5.3 s"), (6000, "6 s"), (60_000, "60 s"), (120_000, "2 min"), (9e6, "2 h"), (2e8, "2 d")],
)
def test_durations_are_short(milliseconds: float, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_every_reason_of_a_failed_push_has_words_and_a_remedy() -> None:
    from deliveries.rules.outcome import Reason

    assert set(texts.REASONS) == set(Reason)
