"""From the events of a segment to sums by key, made by Arrow. The embedded counter and Spark's tasks share it.

All sums are of integers, so they are the same in any order. A key may have several rows, which the ledger adds up. No
Django here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.rules.histogram import SCALE

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS = ("project", "subscription", "topic", "event", "response_class", "outcome", "host")
NUMBERS = ("response_code", "bytes", "latency_us")
#: What rows are grouped by before the texts are put back: the texts as numbers, the minute and the response code.
GROUPS = (*TEXTS, "minute", "response_code")
#: The outcome of attempts that don't count: a worker stopped, and another one repeats them.
GIVEN_UP = "release"
#: What `sum_segments` returns: the sums of a segment in Arrow's stream format. As columns of rows, Java would convert
#: each of their many buckets, to its own form and back.
PACKED = "sums binary"


def sum_segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: return the sums of the segments whose paths are in the column `path`, in PACKED."""
    import pyarrow as pa

    for batch in batches:
        for path in batch.column("path").to_pylist():
            yield pa.record_batch({"sums": pa.array([_packed(segment_sums(Path(path)))], pa.binary())})


def _packed(sums: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, sums.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_table(sums)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes) -> pa.Table:
    """Return the sums of a segment."""
    import pyarrow as pa

    with pa.ipc.open_stream(packed) as stream:
        return stream.read_all()


def segment_sums(path: Path) -> pa.Table:
    """Return the sums of a segment by key; `buckets` and `counts` are lists of the same length.

    Columns that an older segment lacks count as null.

    Raises OSError or pyarrow.ArrowException for a file that cannot be read.
    """
    table, texts = _read(path)
    return _named(_grouped(table), texts, segment=path.name)


def _read(path: Path) -> tuple[pa.Table, dict[str, pa.Array]]:
    """Return the columns of a segment with texts as numbers, and for each column of texts the text of each number."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    footer = pq.read_metadata(path)
    texts_there = [name for name in TEXTS if name in footer.schema.names]
    with pq.ParquetFile(path, metadata=footer, read_dictionary=texts_there) as file:
        table = file.read(columns=[*TEXTS, *NUMBERS, "time"], use_threads=False).combine_chunks()
    columns, texts = {}, {}
    for name in TEXTS:
        column = _column(table, name, pa.dictionary(pa.int32(), pa.string()))
        columns[name], texts[name] = column.indices, column.dictionary
    for name in NUMBERS:
        columns[name] = _column(table, name, pa.int32() if name == "response_code" else pa.int64())
    # Without a time zone the minute needs no zone database, which a small container may lack.
    time = _column(table, "time", pa.timestamp("us", tz="UTC")).cast(pa.int64()).cast(pa.timestamp("us"))
    columns["minute"] = pc.divide(pc.floor_temporal(time, unit="minute").cast(pa.int64()), 1_000_000)
    columns["bucket"] = _buckets(columns["latency_us"])
    return pa.table(columns), texts


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    column = table[name] if name in table.column_names else None
    if column is None or not column.num_chunks:
        return pa.nulls(table.num_rows, kind)
    return column.chunk(0)


def _buckets(latencies_us: pa.Array) -> pa.Array:
    """Return `rules.histogram.bucket_of` of each latency, and null for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.max_element_wise(latencies_us, 1, skip_nulls=False).cast(pa.float64(), safe=False)
    return pc.ceil(pc.multiply(pc.log2(values), float(2**SCALE))).cast(pa.int32())


def _grouped(table: pa.Table) -> pa.Table:
    """Add up the rows by key and bucket, then by key with the buckets as lists."""
    sums = table.group_by([*GROUPS, "bucket"], use_threads=False).aggregate(
        [([], "count_all"), ("bytes", "sum"), ("latency_us", "sum"), ("latency_us", "max")]
    )
    totals = [("count_all", "sum"), ("bytes_sum", "sum"), ("latency_us_sum", "sum"), ("latency_us_max", "max")]
    lists = [("bucket", "list"), ("count_all", "list")]
    return sums.group_by(list(GROUPS), use_threads=False).aggregate([*totals, *lists])


def _named(sums: pa.Table, texts: dict[str, pa.Array], *, segment: str) -> pa.Table:
    """Put the texts back, and name the columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = {name: texts[name].take(sums[name].combine_chunks()) for name in TEXTS}
    # The ledger counts what has no resource as rows of the segment only.
    given_up = pc.fill_null(pc.equal(text["outcome"], GIVEN_UP), False)
    resource = pc.if_else(given_up, pa.scalar(None, pa.string()), pc.coalesce(text["subscription"], text["topic"]))
    return pa.table(
        {
            "segment": [segment] * sums.num_rows,
            "project": text["project"],
            "resource": resource,
            "event": text["event"],
            "minute": sums["minute"],
            "response_class": pc.coalesce(text["response_class"], text["outcome"]),
            "response_code": pc.fill_null(sums["response_code"], 0),
            "host": pc.fill_null(text["host"], ""),
            "n": sums["count_all_sum"],
            "bytes": pc.fill_null(sums["bytes_sum_sum"], 0),
            "latency_us_sum": pc.fill_null(sums["latency_us_sum_sum"], 0),
            "latency_us_max": pc.fill_null(sums["latency_us_max_max"], 0),
            "buckets": sums["bucket_list"],
            "counts": sums["count_all_list"],
        }
    )
