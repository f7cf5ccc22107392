"""The columns of the archive, for Spark and for Arrow. No Django here: Spark's tasks read it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns and their types in Spark's terms. Google's exports have these names too, except `step`. `project` is not
#: in the files, but in the names of their folders.
COLUMNS: Mapping[str, str] = {
    "project": "string",
    "topic": "string",
    "message_id": "string",
    "publish_time": "timestamp",
    "data": "binary",
    "attributes": "map<string,string>",
    "ordering_key": "string",
    # The step of the archiver that archived the message. Later steps have larger numbers. Older files lack this column.
    "step": "bigint",
}
#: The columns of a message, without those of the archive.
MESSAGE = tuple(name for name in COLUMNS if name != "step")


def spark_schema(names: tuple[str, ...]) -> str:
    """Return the schema of some columns, as a text for Spark."""
    return ", ".join(f"{name} {COLUMNS[name]}" for name in names)


@cache
def arrow_schema(names: tuple[str, ...] = tuple(COLUMNS)) -> pa.Schema:
    """Return the schema of some columns, as Arrow and Spark exchange them."""
    return arrow_schema_of({name: COLUMNS[name] for name in names})


def arrow_schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return Arrow's schema of columns with types in Spark's terms."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "int": pa.int32(),
        "bigint": pa.int64(),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])
