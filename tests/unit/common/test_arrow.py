"""Arrow in a process that has no use for pandas."""

from __future__ import annotations

import subprocess
import sys

USE = """
import sys
from pushhub.common.arrow import import_arrow_alone

import_arrow_alone()
import pyarrow as pa
import pyarrow.parquet

assert pa.table({"id": pa.array(["1", "2"]), "ms": pa.array([1, None], pa.int64())}).num_rows == 2
print(sorted({"numpy", "pandas"} & sys.modules.keys()))
"""


def test_arrow_is_imported_without_pandas_and_leaves_no_trace_of_that() -> None:
    done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
