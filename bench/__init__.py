"""Benchmarks. Each is a command, such as `python -m bench` or `python -m bench.compare`: bench/README.md lists them."""

from __future__ import annotations

import signal
import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback for a fault only: not for an interruption, and not for a row that could not be measured."""
    if isinstance(error, KeyboardInterrupt):
        return  # Python ends by the signal, as the shell expects, unless something is imported here
    from bench.processes import BenchError, say

    if isinstance(error, BenchError):
        say(str(error))
    else:
        sys.__excepthook__(kind, error, trace)


# Python has this first argument while it looks for the module of its option -m. A test that imports the bench has not.
if sys.argv[0] == "-m":
    sys.excepthook = _report
    # As after Ctrl-C, an exception lets context managers end the processes that they have started.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
