"""What Spark needs and a machine may lack: Java 17 and PySpark with its companions."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_LEAST = 17
LIBRARIES = ("pyspark", "pandas", "pyarrow")


@functools.cache
def missing() -> str:
    """One line on what is missing and what to do about it; empty where Spark can run."""
    absent = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed: run `make install-spark`"
    version = java_version()
    if version < JAVA_LEAST:
        found = f"Java {version} is too old" if version else "no Java found"
        return f"{found}: install Java {JAVA_LEAST} or newer (Debian: openjdk-{JAVA_LEAST}-jre-headless)"
    return ""


def java_version() -> int:
    """The major version of the Java that Spark would start; 0 without one."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java:
        return 0
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?([0-9]+)', asked.stderr)
    return int(found[1]) if found else 0
