"""Runs a storm: python -m tests.chaos --seed 1 --minutes 1 --database sqlite --load 20."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.drawing import draw
from tests.chaos.plan import SLOT_SECONDS
from tests.chaos.planted import BUGS
from tests.chaos.storm import Options, Storm


def read_options() -> tuple[Options, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--cells", type=int, default=1, help="PUSHHUB_CELLS")
    parser.add_argument("--load", type=float, default=20.0, help="messages published per second")
    parser.add_argument(
        "--bulk", type=float, default=0.0, help="messages per second to a plain and an ordered subscription, too"
    )
    parser.add_argument("--plant", default="", help=f"bugs that the checker has to find: {', '.join(BUGS)}")
    parser.add_argument("--only", default="", help="the kinds of faults, separated by commas")
    parser.add_argument("--without", default="", help="kinds of faults to leave out, separated by commas")
    parser.add_argument("--ignore", default="", help="kinds of findings that are known, separated by commas")
    parser.add_argument("--wait", type=float, default=5.0, help="the longest wait without a fault, in seconds")
    parser.add_argument("--drain", type=float, default=120.0, help="how long nothing may arrive afterwards, in seconds")
    parser.add_argument("--every", type=float, default=SLOT_SECONDS, help="seconds between two faults")
    parser.add_argument("--flower", action="store_true", help="run Flower too")
    parser.add_argument("--trace", type=Path, help="a file for samples and faults, as lines of JSON")
    parser.add_argument("--plot", type=Path, help="an SVG to draw the storm to")
    parser.add_argument("--keep", action="store_true", help="keep the logs of a run without findings too")
    given = parser.parse_args()
    without, only, ignored, bugs = (
        tuple(filter(None, text.split(","))) for text in (given.without, given.only, given.ignore, given.plant)
    )
    if unknown := set(bugs).difference(BUGS):
        parser.error(f"no bug is called {', '.join(unknown)}")
    options = Options(
        given.seed,
        given.minutes,
        given.database,
        given.load,
        bulk=given.bulk,
        bugs=bugs,
        without=without,
        only=only or tuple({fault: None for bug in bugs for fault in BUGS[bug].faults}),
        ignored=ignored,
        longest_wait=given.wait,
        drain_seconds=given.drain,
        every=given.every,
        is_monitored=given.flower,
        cells=given.cells,
        trace=given.trace,
    )
    return options, given


def main() -> int:
    options, given = read_options()
    # SIGTERM ends the processes of the storm too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix=f"pushhub-storm-{options.seed}-"))
    storm = Storm(options, folder)
    findings = storm.run()
    if given.plot:
        title = (
            f"seed {options.seed}, {options.minutes:g} minutes, {options.database}, {options.load:g} messages a second"
        )
        given.plot.write_text(draw(title, storm.ledger.incidents, storm.samples))
    print("\n".join(f"{name}: {value}" for name, value in sorted(findings.figures.items())))
    if not findings.wrong:
        print(f"no findings in the storm of seed {options.seed}")
        if not given.keep:
            shutil.rmtree(folder)
        return 0
    storm.ledger.dump(folder / "ledger.jsonl")
    print(f"\nFINDINGS in the storm of seed {options.seed} on {options.database}; the logs are in {folder}")
    print("\n".join(findings.lines()))
    return 1


if __name__ == "__main__":
    sys.exit(main())
