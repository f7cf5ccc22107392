"""Forks push workers from a process that has imported their libraries: a third of the time of a new Python process.

A worker is forked from that process, which holds no thread and none of PushHub's modules, and reads its own environment
like any other. Everything after the imports is what `celery worker` does.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver

#: The libraries that a worker imports and that need no settings.
LIBRARIES = (
    "asyncio",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.solo",
    "celery.worker.consumer",
    "cryptography.x509",
    "dj_database_url",
    "django.contrib.admin.helpers",
    "django.core.management",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.forms",
    "django.urls",
    "django.views.generic",
    "drf_spectacular.apps",
    "fastavro",
    "hiredis",
    "httptools",
    "jwt",
    "kombu.transport.redis",
    "orjson",
    "psycopg",
    "pyarrow",
    "redis.asyncio",
    "requests",
    "rest_framework",
    "uvloop",
    "whitenoise",
    "yaml",
)

_context = multiprocessing.get_context("forkserver")


def start() -> None:
    """Start the process that workers are forked from. It ends with this one."""
    _context.set_forkserver_preload(list(LIBRARIES))
    forkserver.ensure_running()


class CeleryProcess:
    """A forked `celery`, with the methods of subprocess.Popen that tests need."""

    def __init__(self, arguments: Sequence[str], *, environment: Mapping[str, str], log: str, first: str = "") -> None:
        start()
        self._process = _context.Process(target=_celery, args=(list(arguments), first, dict(environment), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("celery", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _celery(arguments: list[str], first: str, environment: dict[str, str], log: str) -> None:
    """Run in the forked process: take on the environment and the log, run `first`, then become `celery`."""
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    warnings.simplefilter("ignore")
    sys.argv = ["celery", *arguments]
    try:
        exec(first, {})
        from celery.__main__ import main

        sys.exit(main())
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
