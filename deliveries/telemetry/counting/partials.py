"""From a table of sums, made by Spark or by Arrow, to the records of the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deliveries.telemetry.counting import ledger

if TYPE_CHECKING:
    import pyarrow as pa


def partials_of(table: pa.Table) -> list[ledger.Partial]:
    """Return the rows of a table of sums as the ledger takes them. Raises ValueError for an event without a time."""
    return [
        ledger.Partial(
            row["segment"],
            (
                _clipped(row["resource"], 350),
                _clipped(row["event"], 20),
                _minute(row["minute"]),
                _clipped(row["response_class"], 40),
                row["response_code"],
                _clipped(row["host"], 260),
            ),
            ledger.Sums(
                _clipped(row["project"], 63),
                row["n"],
                row["bytes"],
                row["latency_us_sum"],
                row["latency_us_max"],
                {
                    bucket: count
                    for bucket, count in zip(row["buckets"], row["counts"], strict=True)
                    if bucket is not None
                },
            ),
        )
        for row in table.to_pylist()
    ]


def _minute(seconds: int | None) -> datetime:
    if seconds is None:
        raise ValueError("an event has no time")
    return datetime.fromtimestamp(seconds, UTC)


def _clipped(text: str | None, length: int) -> str:
    """Cut a text to the length of its column: one odd event must not stop all others."""
    return (text or "").replace("\0", "")[:length]
