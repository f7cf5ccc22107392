"""Spark's daemon of Python workers. It imports the libraries of PushHub's tasks before it forks a worker."""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

from tests.preloaded import LIBRARIES

#: Arrow imports pandas, if that is installed, when it creates its first array.
MORE_LIBRARIES = ("pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet")

if __name__ == "__main__":
    for library in (*LIBRARIES, *MORE_LIBRARIES):
        importlib.import_module(library)
    manager()
