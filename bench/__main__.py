"""`make bench`: measures the engine and writes bench/results/engine.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.stand import say

RESULTS = Path(__file__).parent / "results" / "engine.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default="", help="rows to measure, separated by commas")
    parser.add_argument("--quick", action="store_true", help="small counts: to try the harness, not to quote")
    parser.add_argument("--out", type=Path, default=RESULTS, help=f"where the results go (default {RESULTS})")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        _prepare_django(folder)
        from bench.engine import ROWS

        names = given.only.split(",") if given.only else [*ROWS, "sustained_postgresql"]
        unknown = [name for name in names if name not in ROWS and name != "sustained_postgresql"]
        if unknown:
            parser.error(f"no such row: {unknown[0]} (rows: {', '.join([*ROWS, 'sustained_postgresql'])})")
        results = _read(given.out)
        for name in names:
            say(name)
            began = time.monotonic()
            row = _on_postgresql(given.quick) if name == "sustained_postgresql" else ROWS[name](given.quick)
            results["figures"].update(row)
            results["machine"] = _machine()
            results["quick"] = given.quick
            given.out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
            say(f"  ({time.monotonic() - began:.0f} s)")
    print(json.dumps(results["figures"], indent=2, sort_keys=True))
    return 0


def _prepare_django(folder: str) -> None:
    """Settings as `make up` has them; each row then moves to a stand of its own."""
    import django

    os.environ.update(
        DJANGO_SETTINGS_MODULE="pushhub.settings",
        PUSHHUB_DATA=folder,
        PUSHHUB_DEVELOPMENT="1",
        PUSHHUB_ALLOW_HTTP="1",
        PUSHHUB_ALLOW_PRIVATE="1",
        PUSHHUB_LOG_LEVEL="WARNING",
    )
    django.setup()


def _on_postgresql(quick: bool) -> dict[str, Any]:
    """The sustained row in a process of its own, on a throw-away PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        bench = [sys.executable, "-m", "bench", "--only", "sustained", "--out", str(out)]
        command = [sys.executable, "-m", "tests.with_postgresql", *bench, *(["--quick"] if quick else [])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=400)
        figures: dict[str, Any] = json.loads(out.read_text())["figures"]
        return figures


def _read(path: Path) -> dict[str, Any]:
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {"figures": {}}


def _machine() -> dict[str, Any]:
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": cpu.partition(":")[2].strip(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(memory.split()[1]) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_average": os.getloadavg()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
