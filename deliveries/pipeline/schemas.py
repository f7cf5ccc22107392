"""The columns of the pipeline's files, as data: the journal writes them with Arrow, Spark reads them.

Types are named as both know them: string, int16, int32, int64, binary, timestamp (microseconds, UTC), and
map<string,string>. Columns are only ever added, at the end; a reader sees null where an old file has none.
"""

from __future__ import annotations

#: What the archive keeps of a message (the names are those of Google's exports to storage and BigQuery).
MESSAGE = (
    ("project", "string"),
    ("topic", "string"),
    ("message_id", "string"),
    ("publish_time", "timestamp"),
    ("data", "binary"),
    ("attributes", "map<string,string>"),
    ("ordering_key", "string"),
)
