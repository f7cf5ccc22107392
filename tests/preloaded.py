"""Forks workers and servers from a process that has imported their modules: a seventh of the CPU of a new Python.

That process holds no thread. Each fork reads the settings anew, from its own environment, and then does what
`python -m` does.
"""

from __future__ import annotations

import atexit
import contextlib
import logging.config
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver

from asgiref.local import Local
from django.conf import empty, settings
from django.db import connections

from pushhub.runtime.forking import LIBRARIES

#: These read settings that tests change while they are imported.
LEFT_OUT = {"pushhub.celery", "pushhub.wsgi"}
#: Imported beside Django's apps.
MODULES = tuple(name for name in LIBRARIES if name not in LEFT_OUT)
#: The settings that these modules read while they are imported, so that all forks have the same.
READ_AT_IMPORT = ("WEB_THREADS",)

_context = multiprocessing.get_context("forkserver")


def start() -> None:
    """Start the process that workers are forked from. It ends with this one."""
    _context.set_forkserver_preload(["tests.preloadedapps"])
    forkserver.ensure_running()


class PreloadedProcess:
    """A forked `python -m`, with the methods of subprocess.Popen that tests need. `words` are its arguments."""

    def __init__(self, *words: str, environment: Mapping[str, str], log: str, first: str = "") -> None:
        """Start the process; it writes to the file `log`, and runs the code `first` before the module."""
        start()
        self._process = _context.Process(target=_run, args=(words, first, dict(environment), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("python", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def settings_read_again() -> None:
    """Have Django read its settings from the environment of this process.

    Raises ValueError if that changes one that the modules have read already.
    """
    before = {name: getattr(settings, name) for name in READ_AT_IMPORT}
    # The addresses depend on whether this is the emulator.
    for name in ("pushhub.settings", "pushhub.urls"):
        sys.modules.pop(name, None)
    settings._wrapped = empty
    for name, value in before.items():
        if getattr(settings, name) != value:
            raise ValueError(f"{name} was read when the modules were imported: start a new Python for another value")
    connections.__dict__.pop("settings", None)
    connections._settings = None
    connections._connections = Local(connections.thread_critical)
    logging.config.dictConfig(settings.LOGGING)


def _run(words: Sequence[str], first: str, environment: dict[str, str], log: str) -> None:
    """Run in the forked process: take on the environment, the settings and the log, run `first`, then the module."""
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    warnings.simplefilter("ignore")
    module, *arguments = words
    sys.argv = [module, *arguments]
    try:
        settings_read_again()
        exec(first, {})
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
