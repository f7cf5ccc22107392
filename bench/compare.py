"""Compares this working tree with an older commit: `python -m bench.compare 85cde97 --rows single,up --turns 3`.

Each has its own bench and its own environment, from its own locks or requirements. Rows are measured in turns, old and
new, so that what else the machine does concerns both. Prints a Markdown table of the medians so far after each turn;
"-" is what a bench lacks, or could not measure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.processes import ROOT, BenchError, run_to_end, say

#: What was measured, turn by turn.
Figures = Mapping[str, Sequence[float]]
#: The longest time for one row: `neighbours` publishes 500,000 messages.
ROW_SECONDS = 3600
INSTALL_SECONDS = 1200


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--rows", required=True, metavar="NAME,...", help="rows of the bench (python -m bench --help)")
    parser.add_argument("--turns", type=int, default=3, help="how often each row is measured (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small counts, to try the harness")
    arguments = parser.parse_args()
    old_root = _check_out(arguments.commit)
    old, new = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for turn in range(arguments.turns):
        for row in arguments.rows.split(","):
            for root, figures in ((old_root, old), (ROOT, new)):
                say(f"turn {turn + 1}, {row}, {'new' if root is ROOT else arguments.commit}")
                for key, figure in _measure(root, row, quick=arguments.quick).items():
                    figures[key].append(figure)
        # After each turn: the run may be interrupted.
        print(compare_figures(old, new, commit=arguments.commit), flush=True)


def compare_figures(old: Figures, new: Figures, *, commit: str) -> str:
    """Return the table: a line for each figure, with both medians and how many times the old one the new one is."""
    lines = [f"| figure | {commit} | now | ratio |", "|---|---|---|---|"]
    for key in sorted({*old, *new}):
        medians = [median(figures[key]) if figures.get(key) else None for figures in (old, new)]
        before, after = medians
        ratio = f"{after / before:.2f}" if before and after is not None else "-"
        lines.append(f"| {key} | {' | '.join('-' if m is None else f'{m:,.6g}' for m in medians)} | {ratio} |")
    return "\n".join(lines)


def _check_out(commit: str) -> Path:
    """Return a folder with the commit and its environment, which the next comparison finds again."""
    named = ["git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    described = subprocess.run(named, cwd=ROOT, check=False, capture_output=True, text=True)
    if described.returncode:
        raise BenchError(f"{commit} is no commit of this repository")
    name = described.stdout.strip()
    folder = Path(tempfile.gettempdir(), f"pushhub-compare-{name}")
    if not (folder / ".git").exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", ROOT, folder], check=True)
    # An earlier comparison may have been interrupted at this point.
    subprocess.run(["git", "reset", "--quiet", "--hard", name], cwd=folder, check=True)
    if run_to_end(["make", "install-tests"], seconds=INSTALL_SECONDS, cwd=folder, stdout=sys.stderr).returncode:
        raise BenchError(f"what {commit} needs cannot be installed")
    return folder


def _measure(root: Path, row: str, *, quick: bool) -> dict[str, float]:
    """Measure a row by the bench in `root`; return no figures if it has no such row, or the row fails."""
    python = sys.executable if root is ROOT else str(root / ".venv/bin/python")
    with tempfile.TemporaryDirectory(prefix="pushhub-compare-") as folder:
        out = Path(folder) / "out.json"
        words = [python, "-m", "bench", "--only", row, "--out", str(out), *(["--quick"] if quick else [])]
        try:
            done = run_to_end(words, seconds=ROW_SECONDS, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired:
            say(f"  no figures: the row took more than {ROW_SECONDS} s")
            return {}
        if not out.exists() or not (figures := json.loads(out.read_text())["figures"]):
            say(f"  no figures: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
            return {}
    return {key: figure for key, figure in figures.items() if isinstance(figure, int | float)}


if __name__ == "__main__":
    main()
