"""What bounds the schemas and the messages that are checked against them."""

from __future__ import annotations

MAX_DEFINITION_BYTES = 300 * 1024
#: Of a definition's own nesting. Its parsers recurse, and one that is written in C would take the process along.
MAX_DEFINITION_DEPTH = 64
#: Of a message, which a definition that refers to itself leaves open.
MAX_VALUE_DEPTH = 100
MAX_REVISIONS = 20
MAX_SCHEMAS = 10_000
