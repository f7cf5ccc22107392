"""Measures other ways to push beside PushHub, on one machine with one load and one sink.

Each peer is installed into build/peers/ the first time; one that can't be is named and left out. docs/performance.md
says what the figures mean. A run of all peers writes peers.json beside the other results, and with it the page's
tables and picture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import machine
from bench.peers.install import prepare
from bench.peers.measure import measure
from bench.peers.peers import PEERS
from bench.peers.report import RESULTS, figures_table, write_page
from bench.processes import BenchError, say


def main() -> int:
    arguments = _arguments()
    commands, left_out = {}, {}
    for name in arguments.only:
        try:
            commands[name] = prepare(name, PEERS[name].recipe)
        except (BenchError, OSError) as error:
            left_out[name] = f"not installed: {error}"
            say(f"{name}: {left_out[name]}")
    results: dict[str, Any] = {
        "peers": {},
        "left_out": left_out,
        "machine": machine.facts(),
        "quick": arguments.quick,
        **machine.moment(),
    }
    steal = machine.Steal()
    for number, (name, command) in enumerate(commands.items(), 1):
        say(f"{name} ({number} of {len(commands)}): {PEERS[name].title}")
        try:
            results["peers"][name] = measure(name, PEERS[name], command, quick=arguments.quick)
        except (BenchError, OSError, subprocess.SubprocessError) as error:
            left_out[name] = f"not measured: {error}"
            say(f"  {left_out[name]}")
    results["steal_percent"] = steal.percent()
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=2, sort_keys=True) + "\n")
        if arguments.out == RESULTS:
            write_page()
    print(figures_table(results))
    return 1 if left_out else 0


def _arguments() -> argparse.Namespace:
    listed = "\n".join(f"  {name:16}{peer.title}" for name, peer in PEERS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        epilog=f"peers:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAME,...", help="peers to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="half a second a phase, to try the harness")
    parser.add_argument("--out", type=Path, help="a new file for the results")
    arguments = parser.parse_args()
    if arguments.out is not None and arguments.out.exists():
        parser.error(f"{arguments.out} exists")
    if arguments.out is None and not arguments.quick and not arguments.only:
        arguments.out = RESULTS
    arguments.only = list(dict.fromkeys(filter(None, arguments.only.split(",")))) or list(PEERS)
    for name in arguments.only:
        if name not in PEERS:
            parser.error(f"no such peer: {name} (--help lists them)")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
