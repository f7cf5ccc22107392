"""Each sink by itself: what it makes of the same events."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from deliveries.backlog.default import default_backlog
from deliveries.rules.outcome import FILTER, Reason, Verdict
from deliveries.telemetry.events import DeadLettered, Event, Extended, Sent, Settled
from deliveries.telemetry.journal.files import journals
from deliveries.telemetry.journal.journal import Journal
from deliveries.telemetry.journal.sealing import read_lines
from deliveries.telemetry.sinks.counters import Counters, read_counters
from deliveries.telemetry.sinks.journal import JournalSink
from deliveries.telemetry.sinks.log import AttemptLog
from deliveries.telemetry.sinks.observing import observe
from tests.attempts import SOURCE, attempt, attempts

#: Two acks, a nack, the last nack of a dead letter, a filtered message, a drop, a release, and one that was cut off.
PUSHES = attempts(
    attempt(1),
    attempt(2, answer="", attempt=2),
    attempt(3, Verdict.NACK, answer="no"),
    attempt(4, Verdict.DEAD_LETTER, status=0, reason=Reason.DEADLINE_EXCEEDED),
    attempt(5, Verdict.DROP, status=0, reason=FILTER),
    attempt(6, Verdict.DROP, status=0, reason="expired"),
    attempt(7, Verdict.RELEASE, status=0),
    attempt(8, Verdict.RELEASE, status=0, reason=Reason.ABORTED),
)
EVENTS: Sequence[Event] = (
    PUSHES,
    DeadLettered(SOURCE, {4: 1}),
    Sent(7, "pull", 2),
    Extended(7, "pull", 1, [300]),
    Settled(SOURCE, [21, 22], [1, 3], event="pull", outcome="ack", ages_ms=[1000, 1000]),
    Settled(SOURCE, [23], [1], event="filter", outcome="ack"),
    Settled(SOURCE, [24], [1], event="drop", outcome="drop", reason="skipped"),
)


def test_the_counters_of_events(redis_url: str) -> None:
    counters = Counters(redis_url)
    counters.take(EVENTS)
    counters.close()
    values = {value.field: value.value for value in read_counters(default_backlog().clients)}
    counted = {
        f"{value}|7|{labels}": count
        for value, labels, count in (
            ("subscription_push_request_count", "ack|ack", 2),
            ("subscription_push_request_count", "nack|remote_server_5xx", 1),
            ("subscription_push_request_count", "nack|deadline_exceeded", 1),
            ("subscription_push_request_latency_seconds", "ack|sum", 40_000),
            ("subscription_push_request_latency_seconds", "ack|2", 2),
            ("subscription_push_request_latency_seconds", "nack|sum", 40_000),
            ("subscription_push_request_latency_seconds", "nack|2", 2),
            ("subscription_sent_message_count", "push", 4),
            ("subscription_sent_message_count", "pull", 2),
            ("subscription_ack_message_count", "push", 2),
            ("subscription_ack_message_count", "pull", 2),
            ("subscription_ack_message_count", "filter", 2),
            ("subscription_nack_message_count", "push", 2),
            ("subscription_expired_ack_deadlines_count", "push", 1),
            ("subscription_mod_ack_deadline_message_count", "pull", 1),
            ("subscription_mod_ack_latency_seconds", "pull|sum", 300),
            ("subscription_mod_ack_latency_seconds", "pull|33", 1),
            ("subscription_ack_latency_seconds", "pull|sum", 2000),
            ("subscription_ack_latency_seconds", "pull|40", 2),
        )
    }
    assert values == counted | {"subscription_dead_letter_message_count|7": 1}


def test_what_a_scan_returns_twice_counts_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis may return a field of a hash twice, while it makes the hash smaller."""
    counters = Counters(redis_url)
    counters.take([Sent(7, "pull", 2)])
    counters.close()
    scan = redis.Redis.hscan_iter
    monkeypatch.setattr(redis.Redis, "hscan_iter", lambda *args, **kwargs: [*scan(*args, **kwargs)] * 2)
    assert [value.value for value in read_counters(default_backlog().clients)] == [2]


def test_the_journal_of_events(tmp_path: Path) -> None:
    journal = Journal(tmp_path, keep_free=0)
    JournalSink(journal).take(EVENTS)
    journal.close()
    [path] = journals(tmp_path)
    rows = [
        {**part.shared, **{name: values[place] for name, values in part.columns.items()}}
        for part in read_lines(path)
        for place in range(part.count)
    ]
    assert [(row["message_id"], row["event"], row["outcome"], row.get("reason")) for row in rows] == [
        ("1", "push", "ack", ""),
        ("2", "push", "ack", ""),
        ("3", "push", "nack", ""),
        ("4", "push", "nack", "deadline_exceeded"),
        ("8", "push", "release", "aborted"),
        ("5", "filter", "ack", "filter"),
        ("6", "drop", "drop", "expired"),
        ("4", "dead_letter", "dead_letter", None),
        ("21", "pull", "ack", None),
        ("22", "pull", "ack", None),
        ("23", "filter", "ack", None),
        ("24", "drop", "drop", "skipped"),
    ]
    assert rows[2] == {
        "event": "push",
        "time": 1_795_336_271_000_000,
        "project": "shop",
        "region": "local",
        "subscription": SOURCE.subscription,
        "subscription_id": 7,
        "topic_id": 3,
        "host": "shop.example",
        "push_window": 5,
        "backoff_ms": 0,
        "worker": "w",
        "message_id": "3",
        "attempt": 1,
        "outcome": "nack",
        "reason": "",
        "bytes": 5,
        "response_code": 503,
        "latency_us": 20_000,
        "answer": "no",
    }
    assert [row["attempt"] for row in rows[8:10]] == [1, 3]


def test_the_log_stays_below_its_rate_and_says_for_how_many_attempts_a_line_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pushhub.attempts")
    AttemptLog(1).take([PUSHES, attempts(attempt(9, Verdict.NACK))])
    lines = [record.__dict__ for record in caplog.records]
    assert [(line["event"], line["fields"]["message_id"]) for line in lines] == [
        ("delivery.attempted", "3"),
        ("delivery.attempted", "1"),
    ]
    assert lines[0]["fields"]["response_class"] == "remote_server_5xx"


class Broken:
    def take(self, events: Sequence[Event]) -> None:
        raise RuntimeError


def test_an_error_of_a_sink_keeps_no_event_from_the_others(
    settings: Any, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings.METRICS, settings.JOURNAL = False, ""
    counters = Counters(redis_url)
    observe(EVENTS, Broken(), counters)
    counters.close()
    assert any(True for _ in read_counters(default_backlog().clients))
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "events are missing in Broken"
    ]
