"""Events as rows of the process' journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deliveries.backlog.records import grouped
from deliveries.rules.outcome import FILTER, Reason, Verdict
from deliveries.telemetry.events import OUTCOMES, Attempt, Attempts, DeadLettered, Event, Published, Settled, Source
from deliveries.telemetry.journal.columns import Rows
from deliveries.telemetry.journal.journal import Journal

#: The columns of a source. A row about a subscription has no topic's name.
_OF_SOURCE = (
    *("project", "region", "subscription", "subscription_id", "topic_id", "host", "push_window", "backoff_ms"),
    "worker",
)


class JournalSink:
    """Appends to a journal, which bounds what waits for the disk."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def take(self, events: Sequence[Event]) -> None:
        self._journal.append([rows for event in events if type(event) in _ROWS for rows in _ROWS[type(event)](event)])


def _published(event: Published) -> Iterator[Rows]:
    shared = {
        "event": "publish",
        "project": event.topic.project.project_id,
        "region": event.region,
        "topic": event.topic.name,
        "topic_id": event.topic.pk,
        "outcome": "accepted",
        "response_class": "success",
        "response_code": 0,
    }
    yield _rows(event.ids, shared, bytes=[len(message.data) for message in event.messages])


def _settled(event: Settled) -> Iterator[Rows]:
    shared = {"event": event.event, "outcome": event.outcome, "reason": event.reason}
    yield _rows(event.ids, _of(event.source) | shared, attempt=event.attempts)


def _dead_lettered(event: DeadLettered) -> Iterator[Rows]:
    shared = {"event": "dead_letter", "outcome": "dead_letter"}
    yield _rows(list(event.attempts), _of(event.source) | shared, attempt=list(event.attempts.values()))


def _rows(ids: Sequence[int], shared: dict[str, Any], **columns: Sequence[Any]) -> Rows:
    return Rows(len(ids), {"message_id": list(map(str, ids)), **columns}, {**shared, "time": time.time_ns() // 1000})


def _attempts(event: Attempts) -> Iterator[Rows]:
    for name, attempts in grouped(event.attempts, _name_of).items():
        if not name:
            continue
        column = dict(zip(Attempt._fields, zip(*attempts, strict=True), strict=True))
        columns: dict[str, Sequence[Any]] = {
            "time": [int(ended * 1e6) for ended in column["ended"]],
            "message_id": column["message_id"],
            "attempt": column["attempt"],
            "outcome": [OUTCOMES.get(verdict, verdict) for verdict in column["verdict"]],
            "reason": column["reason"],
            "bytes": column["bytes"],
        }
        shared = _of(event.source) | {"event": name}
        if name == "push":
            columns["response_code"] = column["status"]
            columns["latency_us"] = [int(latency_ms * 1000) for latency_ms in column["latency_ms"]]
            if any(column["answer"]):
                columns["answer"] = [answer or None for answer in column["answer"]]
        elif name == FILTER:
            del columns["outcome"]
            shared["outcome"] = "ack"
        yield Rows(len(attempts), columns, shared)


def _name_of(attempt: Attempt) -> str:
    """Return the journal's event of an attempt, or "" if it has none: a delivery that was given back."""
    if attempt.verdict is Verdict.DROP:
        return FILTER if attempt.reason == FILTER else "drop"
    return "" if attempt.verdict is Verdict.RELEASE and attempt.reason != Reason.ABORTED else "push"


def _of(source: Source) -> dict[str, Any]:
    return {name: getattr(source, name) for name in _OF_SOURCE}


_ROWS: dict[type[Event], Callable[[Any], Iterator[Rows]]] = {
    Attempts: _attempts,
    Published: _published,
    Settled: _settled,
    DeadLettered: _dead_lettered,
}
