"""Spans of files: what one task of an ingest reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from pushhub.common.stores import AnyFile

#: About the size of a span.
PART_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
#: More than any file has of anything.
LAST = 2**62


class Span(NamedTuple):
    """A part of a file, from `first` to before `last`: row groups of Parquet, blocks of Avro, bytes of JSON lines."""

    first: int
    last: int
    #: The number of the first line, if the file has lines.
    line: int = 1


WHOLE = Span(0, LAST)


@dataclass(frozen=True, slots=True)
class Head:
    """What a file says of itself before its rows are read: its columns, and in Parquet its spans and number of rows."""

    columns: Sequence[str]
    spans: Sequence[Span] = ()
    rows: int | None = None


def divide(sizes: Iterable[int]) -> list[Span]:
    """Divide the pieces of a file, which have these sizes in bytes, into spans of about PART_BYTES."""
    spans, first, size, number = [], 0, 0, -1
    for number, piece in enumerate(sizes):
        size += piece
        if size >= PART_BYTES:
            spans.append(Span(first, number + 1))
            first, size = number + 1, 0
    return spans if spans and first > number else [*spans, Span(first, number + 1)]


def line_spans(path: AnyFile) -> list[Span]:
    """Divide a file at the ends of its lines."""
    starts, offset, line = [(0, 1)], 0, 1
    with path.open("rb") as file:
        for chunk in iter(partial(file.read, CHUNK_BYTES), b""):
            due = max(starts[-1][0] + PART_BYTES - offset, 0)
            if end := chunk.find(b"\n", due) + 1:
                starts.append((offset + end, line + chunk.count(b"\n", 0, end)))
            offset += len(chunk)
            line += chunk.count(b"\n")
    ends = [*(first for first, _ in starts[1:]), LAST]
    return [Span(first, last, line) for (first, line), last in zip(starts, ends, strict=True)]
