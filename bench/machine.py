"""The machine and the software with which a row was measured."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.processes import ROOT, BenchError, needed
from pushhub.runtime import embedded
from tests.programs import postgresql_programs

PACKAGES = ("celery", "django", "hiredis", "httptools", "kombu", "redis", "requests", "uvloop")


def facts() -> dict[str, Any]:
    cpu = _line("/proc/cpuinfo", "model name").partition(":")[2].strip()
    memory = int(_line("/proc/meminfo", "MemTotal").split()[1])
    postgres = postgresql_programs()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e6, 1),
        "kernel": platform.release(),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "redis_server": _printed([str(embedded.binary()), "--version"]),
        "postgresql": _printed([str(postgres / "postgres"), "--version"]) if postgres else "",
        "nginx": _tool("nginx", "-v"),
        "wrk": _tool("wrk", "-v").partition("Copyright")[0].strip(),
    }


def moment() -> dict[str, Any]:
    """Return the circumstances that differ between measurements on the same machine."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_average_before": round(os.getloadavg()[0], 2),
        "commit": commit(),
    }


def commit() -> str:
    """Return the commit, with a mark if the code differs from it. The results, which the bench writes, are no code."""
    git = ["git", "-C", str(ROOT)]
    changed = _printed([*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)bench/results"])
    return _printed([*git, "describe", "--always"]) + ("-dirty" if changed else "")


class Steal:
    """The share of the machine's CPU time that its host has given to other machines since this object was created."""

    def __init__(self) -> None:
        self._before = self._read()

    def percent(self) -> float:
        stolen, total = (now - then for now, then in zip(self._read(), self._before, strict=True))
        return round(100 * stolen / total, 1) if total else 0.0

    @staticmethod
    def _read() -> tuple[int, int]:
        ticks = list(map(int, _line("/proc/stat", "cpu ").split()[1:9]))
        return ticks[7], sum(ticks)


def _line(path: str, start: str) -> str:
    return next((line for line in Path(path).read_text().splitlines() if line.startswith(start)), f"{start}: 0")


def _tool(name: str, *words: str) -> str:
    try:
        return _printed([needed(name), *words])
    except BenchError:
        return ""


def _printed(command: list[str]) -> str:
    """Return the first line that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return next(iter((done.stdout + done.stderr).splitlines()), "")
