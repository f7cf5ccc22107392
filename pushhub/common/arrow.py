"""Imports Arrow into a process that has no use for pandas."""

from __future__ import annotations

import sys

#: Where Spark is installed they are too, and Arrow imports them to ask whether a list is theirs.
HIDDEN = ("numpy", "pandas")


def import_arrow_alone() -> None:
    """Import Arrow without numpy and pandas, which take 58 MB and 0.4 s of CPU. Without effect if it is imported."""
    if any(name in sys.modules for name in ("pyarrow", *HIDDEN)):
        return
    sys.modules.update(dict.fromkeys(HIDDEN))  # type: ignore[arg-type] # None stands for what cannot be imported
    try:
        import pyarrow as pa

        pa.array([0])  # Arrow asks for pandas now, and never again
    finally:
        # psycopg looks for them here
        for name in HIDDEN:
            del sys.modules[name]
