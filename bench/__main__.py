"""`make bench`: measures the engine and writes bench/results/engine.json."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, raise_file_limit, say
from bench.rows import ROWS, row_named

RESULTS = Path(__file__).parent / "results" / "engine.json"
#: The longest a row may take in a process of its own.
ROW_SECONDS = 400


def main() -> int:
    given = _arguments()
    # Context managers stop what was started, also when the bench is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise_file_limit()
    failed = []
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        _prepare_django(folder)
        from bench import machine

        results = _read(given.out)
        for name in given.only:
            say(f"{name}: {ROWS[name].what}")
            began, moment, steal = time.monotonic(), machine.moment(), machine.Steal()
            try:
                row = _on_postgresql(given.quick) if ROWS[name].on_postgresql else ROWS[name].measure(quick=given.quick)
            except (BenchError, subprocess.SubprocessError) as error:
                say(f"  not measured: {error}")
                failed.append(name)
                continue
            seconds = round(time.monotonic() - began)
            results["figures"].update(row)
            results["rows"][name] = {
                **moment,
                "seconds": seconds,
                "quick": given.quick,
                "steal_percent": steal.percent(),
            }
            results["machine"] = machine.facts()
            if given.out is not None:
                given.out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
            say(f"  ({seconds} s, {results['rows'][name]['steal_percent']} % of the machine stolen)")
    print(json.dumps(results["figures"], indent=2, sort_keys=True))
    if failed:
        say(f"not measured: {', '.join(failed)}")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:22}{row.what} ({', '.join(row.keys)})" for name, row in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"rows, and the keys they fill:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help="rows, or keys, to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="small counts, to try the harness: writes no results")
    parser.add_argument("--out", type=Path, help=f"where the results go (default {RESULTS.relative_to(ROOT)})")
    given = parser.parse_args()
    given.only = list(dict.fromkeys(_row(parser, name) for name in given.only.split(",") if name)) or list(ROWS)
    if given.out is None and not given.quick:
        given.out = RESULTS
    return given


def _row(parser: argparse.ArgumentParser, name: str) -> str:
    found = row_named(name.strip())
    if found is None:
        parser.error(f"no such row or key: {name} (--help lists them)")
    return found


def _prepare_django(folder: str) -> None:
    """Settings as `make up` has them; each row then moves to a stand of its own."""
    import django

    for name in [name for name in os.environ if name.startswith("PUSHHUB_") and name != "PUSHHUB_DATABASE_URL"]:
        del os.environ[name]
    os.environ.update(
        DJANGO_SETTINGS_MODULE="pushhub.settings",
        PUSHHUB_DATA=folder,
        PUSHHUB_DEVELOPMENT="1",
        PUSHHUB_ALLOW_HTTP="1",
        PUSHHUB_ALLOW_PRIVATE="1",
        PUSHHUB_LOG_LEVEL="WARNING",
    )
    if os.environ.get("BENCH_ON_POSTGRESQL") != "1":
        # Rows flush the database they use: it is never one that somebody happens to have configured.
        os.environ.pop("PUSHHUB_DATABASE_URL", None)
    django.setup()


def _on_postgresql(quick: bool) -> dict[str, Any]:
    """The sustained row in a process of its own, on a throw-away PostgreSQL."""
    with tempfile.TemporaryDirectory() as name, postgresql() as url:
        out = Path(name) / "out.json"
        command = [sys.executable, "-m", "bench", "--only", "sustained", "--out", str(out)]
        env = os.environ | {"PUSHHUB_DATABASE_URL": url, "BENCH_ON_POSTGRESQL": "1"}
        process = subprocess.Popen(
            [*command, *(["--quick"] if quick else [])], cwd=ROOT, env=env, stdout=subprocess.DEVNULL
        )
        try:
            if process.wait(timeout=ROW_SECONDS):
                raise BenchError("the row on PostgreSQL failed")
        finally:
            process.terminate()
            process.wait(timeout=60)
        figures: dict[str, Any] = json.loads(out.read_text())["figures"]
        return figures


def _read(path: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    return {"figures": {}, "rows": {}, **found}


if __name__ == "__main__":
    sys.exit(main())
