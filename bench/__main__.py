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
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, raise_file_limit, say
from bench.rows import ROWS, row_named

RESULTS = Path(__file__).parent / "results" / "engine.json"
#: The time limit of a row that runs in a process of its own.
ROW_SECONDS = 400


def main() -> int:
    arguments = _arguments()
    # An exception lets the context managers stop their processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        prepare_django(folder)
        return _measure(arguments.only, quick=arguments.quick, out=arguments.out)


def _measure(names: Sequence[str], *, quick: bool, out: Path | None) -> int:
    """Measure rows one after the other, all of one commit; the exit status.

    The results begin empty: figures of different runs or commits never stand side by side.
    """
    from bench import machine

    results: dict[str, Any] = {"figures": {}, "rows": {}, "not_measured": [], "machine": machine.facts()}
    commit = machine.moment()["commit"]
    for name in names:
        row = ROWS[name]
        say(f"{name}: {row.what}")
        began, moment, steal = time.monotonic(), machine.moment(), machine.Steal()
        if moment["commit"] != commit:
            say(f"the code changed from {commit} to {moment['commit']} during the run: start again")
            return 1
        try:
            figures = _on_postgresql(name, quick=quick) if row.on_postgresql else row.measure(quick=quick)
        except Exception as error:
            # The other rows took up to an hour: one that fails must not end the run.
            if not isinstance(error, BenchError | subprocess.SubprocessError):
                traceback.print_exc()
            say(f"  not measured: {error}")
            results["not_measured"].append(name)
            continue
        finished = {"seconds": round(time.monotonic() - began), "quick": quick, "steal_percent": steal.percent()}
        results["figures"] |= figures
        results["rows"][name] = moment | finished
        if out is not None:
            out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
        say(f"  ({finished['seconds']} s, {finished['steal_percent']} % of the machine stolen)")
    print(json.dumps(results["figures"], indent=2, sort_keys=True))
    if results["not_measured"]:
        say(f"not measured: {', '.join(results['not_measured'])}")
    return 1 if results["not_measured"] else 0


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
    parser.add_argument(
        "--out",
        type=Path,
        help=f"a new file for the results (default: {RESULTS.relative_to(ROOT)} for a run of all rows, else none)",
    )
    arguments = parser.parse_args()
    if arguments.out is not None and arguments.out.exists():
        parser.error(f"{arguments.out} exists: rows of different runs are not merged")
    if arguments.out is None and not arguments.quick and not arguments.only:
        arguments.out = RESULTS
    arguments.only = list(dict.fromkeys(_row(parser, name) for name in arguments.only.split(",") if name)) or list(ROWS)
    return arguments


def _row(parser: argparse.ArgumentParser, name: str) -> str:
    row = row_named(name.strip())
    if row is None:
        parser.error(f"no such row or key: {name} (--help lists them)")
    return row


def prepare_django(folder: str) -> None:
    """Set up Django with the settings of `make up`. Each row then uses a stand of its own."""
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
        # Rows flush the database that they use, so a configured database must never be used.
        os.environ.pop("PUSHHUB_DATABASE_URL", None)
    django.setup()


def _on_postgresql(name: str, *, quick: bool) -> dict[str, Any]:
    """Measure a row in a process of its own, on a temporary PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder, postgresql() as url:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "bench", "--only", name.removesuffix("_postgresql"), "--out", str(out)]
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


if __name__ == "__main__":
    sys.exit(main())
