"""The limits of schemas, and of messages that are validated against them."""

from __future__ import annotations

MAX_DEFINITION_BYTES = 300 * 1024
#: The nesting of a definition. Its parsers recurse, and the one written in C would crash the process.
MAX_DEFINITION_DEPTH = 64
#: The nesting of a message, which a recursive definition leaves open.
MAX_VALUE_DEPTH = 100
MAX_REVISIONS = 20
MAX_SCHEMAS = 10_000
