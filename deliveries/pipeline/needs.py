"""Checks whether a machine has what Spark needs: Java, PySpark, pandas and pyarrow."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from deliveries.pipeline.javaruntime import JAVA_LEAST, prepare_java

LIBRARIES = ("pyspark", "pandas", "pyarrow")
#: The root of the checkout, if PushHub runs from one.
ROOT = Path(__file__).resolve().parents[2]


def missing() -> str:
    """Return one line on what is missing and what to do about it; "" where Spark can run.

    `make up` may install it while this process runs, so only a good result is cached.
    """
    importlib.invalidate_caches()
    absent = [name for name in LIBRARIES if not _is_installed(name)]
    if absent:
        return f"{', '.join(absent)} not installed: {_advice()}"
    version = prepare_java()
    if version < JAVA_LEAST:
        prepare_java.cache_clear()
        reason = f"Java {version} is too old" if version else "no Java found"
        return f"{reason}: {_advice()}, or install Java {JAVA_LEAST} or newer"
    return ""


def has_own_environment() -> bool:
    """Return whether this runs in the virtual environment that `make install` creates and nothing else uses."""
    return (ROOT / "Makefile").exists() and Path(sys.prefix).resolve() == (ROOT / ".venv").resolve()


def _advice() -> str:
    return "run `make install-spark`" if has_own_environment() else "run `pip install 'pushhub[spark]'`"


def _is_installed(name: str) -> bool:
    """Return whether a package is installed completely. pip writes its list of files last."""
    if importlib.util.find_spec(name) is None:
        return False
    try:
        return name != "pyspark" or distribution(name).files is not None
    except PackageNotFoundError:
        return True  # a Spark that was unpacked onto PYTHONPATH
