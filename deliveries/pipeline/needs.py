"""What Spark needs and a machine may lack: Java and PySpark with its companions."""

from __future__ import annotations

import functools
import importlib.util

from deliveries.pipeline.javaruntime import JAVA_LEAST, java_prepare

LIBRARIES = ("pyspark", "pandas", "pyarrow")


@functools.cache
def missing() -> str:
    """One line on what is missing and what to do about it; empty where Spark can run."""
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: run `make install-spark`"
    version = java_prepare()
    if version < JAVA_LEAST:
        reason = f"Java {version} is too old" if version else "no Java found"
        return f"{reason}: run `make install-spark`, or install Java {JAVA_LEAST} or newer"
    return ""
