"""The web server: `python -m pushhub.runtime.webserver` answers REST, admin, tokens and documentation.

If PUSHHUB_WEB_WORKERS is more than 1, this process only listens. It keeps that many worker processes running, which
accept connections from its socket, and stops them. It has imported everything and forks them, so they start fast and
share its memory. It has no other threads, whose locks a fork would have.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from multiprocessing.context import ForkProcess

from django.conf import settings

from pushhub.common import environment as env
from pushhub.common.servers import STOP_SIGNALS, listen, raise_open_files, run_loop, serve
from pushhub.runtime.httpserver.limits import read_limits
from pushhub.runtime.httpserver.requestthreads import RequestThreads
from pushhub.runtime.httpserver.server import HttpServer

#: How long current requests may go on after the server was asked to stop, and the time until workers are killed.
GRACE_SECONDS = 8.0
KILL_SECONDS = 10.0
#: How often the server looks for workers that have ended, to replace them.
RESPAWN_SECONDS = 1.0
#: What requests need.
APPLICATION = ("pushhub.wsgi", "deliveries.api.direct", "deliveries.publish.writer")


@asynccontextmanager
async def serving(listening: socket.socket, *, grace_seconds: float = GRACE_SECONDS) -> AsyncIterator[None]:
    """Answer requests during the block."""
    from pushhub.wsgi import application

    # These modules need Django, which the import of the application has set up.
    from deliveries.api.direct import DirectPublish  # isort: skip
    from deliveries.publish.writer import publish_writer  # isort: skip

    with RequestThreads(settings.WEB_THREADS) as threads, publish_writer(asyncio.get_running_loop()) as writer:
        server = HttpServer(
            application,
            threads=threads,
            limits=read_limits(),
            files=raise_open_files(),
            direct=DirectPublish(writer, application),
        )
        await server.start(listening)
        try:
            yield
        finally:
            await server.stop(seconds=grace_seconds)


class Workers:
    """The worker processes of one listening socket."""

    def __init__(self, listening: socket.socket, count: int) -> None:
        self._listening = listening
        self._count = count
        self._processes: list[ForkProcess] = []
        self._stop = threading.Event()
        #: A pipe whose writing end stays open as long as this process lives.
        self._life, self._life_end = os.pipe()

    def run(self) -> None:
        """Keep the workers running until this process is asked to stop."""
        for number in STOP_SIGNALS:
            signal.signal(number, lambda _number, _frame: self._stop.set())
        for name in APPLICATION:
            import_module(name)
        # Keep the workers' garbage collectors from writing to these objects: their pages would no longer be shared.
        gc.collect()
        gc.freeze()
        while not self._stop.is_set():
            self._processes = [process for process in self._processes if process.is_alive()]
            while len(self._processes) < self._count:
                self._processes.append(self._start())
            self._stop.wait(RESPAWN_SECONDS)
        self._stop_all()

    def _start(self) -> ForkProcess:
        process = multiprocessing.get_context("fork").Process(target=self._work)
        # A signal to the worker waits until it has no longer this process's handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return process

    def _work(self) -> None:
        """Answer, in a worker process, until it is asked to stop or its parent is gone."""
        os.close(self._life_end)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        try:
            run_loop(serve(serving(self._listening), parent=self._life))
        finally:
            # multiprocessing leaves the functions out that the interpreter calls at its end.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()

    def _stop_all(self) -> None:
        ends = time.monotonic() + KILL_SECONDS
        # While it is open, the kernel takes connections that no worker accepts any more.
        self._listening.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(max(ends - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    parser = argparse.ArgumentParser(prog="python -m pushhub.runtime.webserver", description=__doc__)
    parser.parse_args()
    try:
        with listen(settings.HTTP_ADDRESS) as listening:
            if settings.WEB_WORKERS == 1:
                run_loop(serve(serving(listening)))
            else:
                Workers(listening, settings.WEB_WORKERS).run()
    except (env.SettingError, OSError) as error:
        sys.exit(f"the web server cannot start: {error}")


if __name__ == "__main__":
    main()
