"""The one call by which the data plane tells what has happened."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from deliveries.telemetry.events import Event
from deliveries.telemetry.journal.journal import journal
from deliveries.telemetry.sinks.counters import counters
from deliveries.telemetry.sinks.journal import JournalSink
from deliveries.telemetry.sinks.log import attempt_log
from deliveries.telemetry.sinks.spans import Spans
from pushhub.common import tracing

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes events, and passes over those that don't concern it. It never waits, and its memory is bounded."""

    def take(self, events: Sequence[Event]) -> None:
        """Take events in their order."""


def observe(events: Sequence[Event], *sinks: Sink) -> None:
    """Hand events to the sinks of this process, and to further ones. An error of a sink concerns nobody else."""
    for sink in (*_sinks_of_process(), *sinks):
        try:
            sink.take(events)
        except Exception:
            logger.exception("events are missing in %s", type(sink).__name__)


def _sinks_of_process() -> Iterator[Sink]:
    """Yield the sinks that the settings turn on."""
    if process_journal := journal():
        yield JournalSink(process_journal)
    if process_counters := counters():
        yield process_counters
    if tracing.is_on():
        yield Spans()
    if log := attempt_log():
        yield log
