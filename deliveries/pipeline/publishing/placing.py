"""Which part of a job publishes a message. Messages of an ordering key are all in one part, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Messages of one part, and the most parts of a job. A task publishes a part, sorted.
PART_ROWS = 20_000
MAX_PARTS = 64


def parts_for(count: int) -> int:
    """Return into how many parts a job of so many messages is divided."""
    return min(count // PART_ROWS + 1, MAX_PARTS) if count else 0


def part_of_key(key: Column, alone: Column, *, parts: int) -> Column:
    """Return the number of a message's part, which its ordering key decides or, without one, the value `alone`.

    A job may go on with another release of Spark, whose xxhash64 has the same values.
    """
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64(f.when(key != "", key).otherwise(alone.cast("string"))), f.lit(parts)).cast("int")
