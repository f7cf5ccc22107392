"""How long it takes to find the attempts of one message in the journal, among ten million of others."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import say
from bench.stand import Row

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_ROWS = 20_000
#: Attempts per second in the journal, as in a busy deployment.
ATTEMPTS_A_SECOND = 5_000
LOOK_UPS = 20


def attempts(quick: bool) -> Row:
    """Look up messages of random times in segments like those that push workers seal."""
    from django.conf import settings

    from deliveries.inspection.attempts import AttemptSearch
    from deliveries.inspection.messages import FIRST_MS
    from deliveries.rules.ids import publish_time_ms

    def search_run(message_id: int) -> AttemptSearch:
        search = AttemptSearch(message_id)
        search.begin()
        start_ms = publish_time_ms(message_id)
        search.read(lambda events: [(start_ms, start_ms + FIRST_MS)])
        return search

    count = 2 * SEGMENT_ROWS if quick else 10_000_000
    dice = random.Random(7)
    began_ms = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)
    with tempfile.TemporaryDirectory() as name:
        _write(Path(name), began_ms, count)
        kept, settings.JOURNAL = settings.JOURNAL, name
        try:
            search_run(_message_id(began_ms, 0))  # imports
            seconds, complete = [], 0
            for _ in range(LOOK_UPS):
                message_id = _message_id(began_ms, dice.randrange(count // 2) * 2)
                started = time.perf_counter()
                search = search_run(message_id)
                seconds.append(time.perf_counter() - started)
                complete += len(search.events) == 2 and search.rest_ms is None
        finally:
            settings.JOURNAL = kept
    median, longest = statistics.median(seconds) * 1000, max(seconds) * 1000
    say(
        f"  attempts of a message among {count:,}: {median:.0f} ms, at most {longest:.0f} ms, "
        f"{complete} of {LOOK_UPS} whole"
    )
    return {
        "attempts_of_a_message_ms": round(median, 1),
        "attempts_of_a_message_ms_at_most": round(longest, 1),
        "attempts_of_a_message_found_percent": round(100 * complete / LOOK_UPS, 1),
    }


def _message_id(began_ms: int, number: int) -> int:
    """Return the id of a message; each has two attempts in a row, so that two numbers are of one message."""
    from deliveries.rules.ids import first_id_at

    at_ms, place = divmod(number // 2 * 2 * 1000, ATTEMPTS_A_SECOND)
    return first_id_at(began_ms + at_ms) + place


def _write(folder: Path, began_ms: int, count: int) -> None:
    import pyarrow.parquet as pq

    from deliveries.telemetry.journal import files
    from deliveries.telemetry.journal.sealing import ROW_GROUP

    alike = _attempts()
    for number, first in enumerate(range(0, count, SEGMENT_ROWS)):
        opened_ms = began_ms + first * 1000 // ATTEMPTS_A_SECOND
        path = files.segment_path(folder, files.journal_name(opened_ms=opened_ms, number=number))
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_moved(alike, began_ms, first), path, compression="zstd", row_group_size=ROW_GROUP)


def _attempts() -> pa.Table:
    """Return a segment's worth of attempts, all at the same time."""
    from deliveries.telemetry.journal.columns import Rows, table_of

    rows = range(SEGMENT_ROWS)
    columns = {
        "message_id": ["0"] * SEGMENT_ROWS,
        "time": [0] * SEGMENT_ROWS,
        "attempt": [1 + number % 2 for number in rows],
        "outcome": ["ack" if number % 2 else "nack" for number in rows],
        "response_code": [204 if number % 2 else 503 for number in rows],
        "latency_us": [1000 + number % 977 for number in rows],
        "bytes": [100] * SEGMENT_ROWS,
    }
    shared = {"event": "push", "subscription": "projects/p/subscriptions/s", "subscription_id": 1, "project": "p"}
    return table_of([Rows(SEGMENT_ROWS, columns, shared)])


def _moved(alike: pa.Table, began_ms: int, first: int) -> pa.Table:
    """Return the attempts with the ids and times of those from number `first` on."""
    import pyarrow as pa

    rows = range(first, first + SEGMENT_ROWS)
    values = {
        "message_id": [str(_message_id(began_ms, number)) for number in rows],
        "time": [began_ms * 1000 + number * 1_000_000 // ATTEMPTS_A_SECOND for number in rows],
    }
    for name, column in values.items():
        field = alike.schema.field(name)
        alike = alike.set_column(alike.schema.get_field_index(name), field, pa.array(column, field.type))
    return alike
