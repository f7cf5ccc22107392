"""`make bench`: measures the engine and writes bench/results/engine.json."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, fork_modules, raise_file_limit, run_to_end, say
from bench.rows import ROWS, row_named

RESULTS = Path(__file__).parent / "results" / "engine.json"
#: The time limit of each row on PostgreSQL, which run in a process of their own.
ROW_SECONDS = 400
#: Whether this is that process.
ON_POSTGRESQL = os.environ.get("BENCH_ON_POSTGRESQL") == "1"


def main() -> int:
    arguments = _arguments()
    raise_file_limit()
    if arguments.quick:
        fork_modules()
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        prepare_django(folder)
        return _measure(arguments.only, quick=arguments.quick, out=arguments.out)


def _measure(names: Sequence[str], *, quick: bool, out: Path | None) -> int:
    """Measure rows one after the other, all of one commit; the exit status.

    The results begin empty: figures of different runs or commits never stand side by side.
    """
    from bench import machine

    results: dict[str, Any] = {"figures": {}, "rows": {}, "not_measured": [], "missed": [], "machine": machine.facts()}
    commit = machine.moment()["commit"]
    elsewhere = [name for name in names if ROWS[name].on_postgresql and not ON_POSTGRESQL]
    for name in names:
        if name in elsewhere:
            continue
        row = ROWS[name]
        say(f"{name}: {row.what}")
        began, moment, steal = time.monotonic(), machine.moment(), machine.Steal()
        if moment["commit"] != commit:
            say(f"the code changed from {commit} to {moment['commit']} during the run: start again")
            return 1
        try:
            figures = row.measure(quick=quick)
            row.check(figures)
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
        results["missed"] += [] if quick else row.missed(figures)
        if out is not None:
            out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
        say(f"  ({finished['seconds']} s, {finished['steal_percent']} % of the machine stolen)")
    if elsewhere:
        measured = _on_postgresql(elsewhere, quick=quick)
        results["figures"] |= measured["figures"]
        results["rows"] |= measured["rows"]
        results["missed"] += measured["missed"]
        results["not_measured"] += [name for name in elsewhere if name not in measured["rows"]]
    if out is not None:
        out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
    print(json.dumps(results["figures"], indent=2, sort_keys=True))
    if results["not_measured"]:
        say(f"not measured: {', '.join(results['not_measured'])}")
    for sentence in results["missed"]:
        say(f"a gate is missed: {sentence}")
    return 1 if results["not_measured"] or results["missed"] else 0


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


def prepare_django(folder: str, *, on_postgresql: bool = ON_POSTGRESQL, **more: str) -> None:
    """Set up Django with the settings of `make up` and `more`. Each row then uses a stand of its own."""
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
        **more,
    )
    if not on_postgresql:
        # Rows flush the database that they use, so a configured database must never be used.
        os.environ.pop("PUSHHUB_DATABASE_URL", None)
    django.setup()


def _on_postgresql(names: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Measure rows in a process of their own, on a temporary PostgreSQL; return its results, which may lack some."""
    with tempfile.TemporaryDirectory() as folder, postgresql() as url:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "bench", "--only", ",".join(names), "--out", str(out)]
        env = os.environ | {"PUSHHUB_DATABASE_URL": url, "BENCH_ON_POSTGRESQL": "1"}
        try:
            run_to_end(
                [*command, *(["--quick"] if quick else [])],
                seconds=ROW_SECONDS * len(names),
                env=env,
                stdout=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            say("the rows on PostgreSQL took too long")
        results: dict[str, Any] = (
            json.loads(out.read_text()) if out.exists() else {"figures": {}, "rows": {}, "missed": []}
        )
        return results


if __name__ == "__main__":
    sys.exit(main())
