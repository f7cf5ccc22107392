"""Reads the archive as a stream. An offset is the number of a step of the archiver; a step has committed messages only.

Steps are numbered in the order in which they were added to the manifest, and the row of every message has its step. So
a range of steps always has the same messages, even after compaction has moved them to other files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.archiving.manifest import ManifestFile, read_manifest
from deliveries.pipeline.datasource.options import Selection, number_of
from deliveries.pipeline.datasource.reader import FilePart, parts_of, read_part
from deliveries.pipeline.datasource.triggers import SupportsTriggerAvailableNow, limits
from pushhub.common.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa

#: The offset before the first step. The messages in files of older releases have step 0.
BEGIN = -1
STEP = "step"
#: A step that no archiver comes to.
NEVER = (1 << 63) - 1


class ArchiveStreamReader(SupportsTriggerAvailableNow, spark.DataSourceStreamReader):
    """Reads what was archived since the query's last batch."""

    def __init__(self, selection: Selection, options: Mapping[str, str]) -> None:
        self._selection = selection
        self._max_rows = number_of(options, "maxRowsPerBatch", 0)
        #: With the trigger availableNow, the last step at the start of the query.
        self._last = NEVER

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {STEP: BEGIN}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - Spark's name
        return limits.ReadMaxRows(self._max_rows) if self._max_rows else limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._last = _last_step(self._files())

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """Return the last step of the next batch, or `start` if there is no new step."""
        begin = start[STEP] if start else BEGIN
        files = [file for file in self._files() if file.last_step > begin and file.first_step <= self._last]
        last = min(max(_last_step(files), begin), self._last)
        if limits and isinstance(limit, limits.ReadMaxRows):
            last = min(_step_within(files, begin, limit.max_rows), last)
        return {STEP: last}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[FilePart]:
        after, to = start[STEP], end[STEP]
        files = [file for file in self._files() if file.last_step > after and file.first_step <= to]
        return [
            part
            for file in files
            if self._selection.may_have(file)
            for part in parts_of(
                file, after=after if file.first_step <= after else None, to=to if file.last_step > to else None
            )
        ]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, FilePart)
        return read_part(self._selection, partition, where=self._selection.expression())

    def _files(self) -> list[ManifestFile]:
        return read_manifest(Store(self._selection.archive))


def _last_step(files: Sequence[ManifestFile]) -> int:
    return max((file.last_step for file in files), default=BEGIN)


def _step_within(files: Sequence[ManifestFile], begin: int, max_rows: int) -> int:
    """Return the last step up to which there are at most `max_rows` rows after `begin`, but at least the next step.

    All rows of a compacted file count for its last step, because the manifest does not have the rows of each step.
    """
    rows: dict[int, int] = {}
    for file in files:
        rows[file.last_step] = rows.get(file.last_step, 0) + file.rows
    total, last = 0, begin
    for step in sorted(rows):
        total += rows[step]
        if total > max_rows and last > begin:
            break
        last = step
    return last
