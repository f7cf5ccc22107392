"""The emulator's process: REST and gRPC in a thread, beat in another, the worker in the main one, Redis as a child."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from pushhub.common import environment as env
from pushhub.common.datafolder import data_folder
from pushhub.common.environment import StartError
from pushhub.common.errors import first_line
from pushhub.common.servers import run_loop
from pushhub.emulator.resources import StartResources, create_resources
from pushhub.runtime import embedded

REDIS_SECONDS = 20.0
SERVERS_SECONDS = 60.0
#: How long current requests may go on after the emulator was asked to stop.
GRACE_SECONDS = 2.0


class Emulator:
    """All of PushHub in this process."""

    def __init__(
        self, resources: StartResources, *, grpc: socket.socket, http: socket.socket, signals: Sequence[int]
    ) -> None:
        """`signals` gets those that ask to stop, until the worker takes them."""
        self._resources, self._signals = resources, signals
        self._grpc, self._http = grpc, http
        self._serving: Future[None] = Future()
        #: A pipe. The servers stop when something is written into it.
        self._end, self._ending = os.pipe()

    def run(self) -> int:
        """Run until SIGTERM or Ctrl-C. Return the exit status."""
        # Until it is ready, hardly anything becomes garbage. To look for it would take a fifth of the start.
        gc.disable()
        server = embedded.RedisServer(url=settings.REDIS_URL, folder=settings.REDIS_FOLDER)
        with data_folder(settings.DATA_DIR, is_closed=False), _running(server) as redis_process:
            try:
                for step in (django.setup, self._prepare_database, lambda: _wait_for_redis(server, redis_process)):
                    self._go_on()
                    step()
                self._go_on()
                self._use_resources()
                return self._serve_and_work()
            finally:
                connections.close_all()

    def _go_on(self) -> None:
        """Raise KeyboardInterrupt if a signal has asked to stop.

        Its handler does not: what is raised within a callback of the interpreter, as of an import, gets lost.
        """
        if self._signals:
            raise KeyboardInterrupt

    def _serve_and_work(self) -> int:
        servers = threading.Thread(target=self._serve, name="servers")
        servers.start()
        try:
            try:
                self._serving.result(SERVERS_SECONDS)
            except BaseException as error:
                raise StartError(f"REST and gRPC do not answer: {first_line(error)}") from None
            self._go_on()
            return self._work()
        finally:
            os.write(self._ending, b"x")
            servers.join()
            os.close(self._ending)
            os.close(self._end)

    def _prepare_database(self) -> None:
        """Create the tables. A temporary database gets them directly, without the migrations."""
        in_memory = settings.EMULATOR == "MEMORY"
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True, run_syncdb=in_memory)

    def _use_resources(self) -> None:
        from pushhub.emulator import views  # imports REST, which needs the apps to be ready

        create_resources(self._resources)
        views.use(self._resources)

    def _serve(self) -> None:
        try:
            run_loop(self._serve_all())
        except BaseException as error:
            if not self._serving.done():
                self._serving.set_exception(error)

    async def _serve_all(self) -> None:
        from pushhub.runtime import grpcserver, webserver

        stop = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._end, stop.set)
        async with webserver.serving(self._http, grace_seconds=GRACE_SECONDS), grpcserver.serving(self._grpc):
            self._serving.set_result(None)
            await stop.wait()

    def _work(self) -> int:
        """Run the worker of pushes and timed tasks, which also takes the signals."""
        from celery.signals import worker_ready
        from celery.worker import state

        from pushhub.beat import beat_thread
        from pushhub.celery import app
        from pushhub.emulator.worker import Worker

        beat = beat_thread(app)

        def ready(**_: Any) -> None:
            if self._signals:  # before the worker took them
                state.should_stop = os.EX_OK  # type: ignore[assignment]  # the published type is wrong
                return
            gc.freeze()
            gc.enable()
            beat.start()
            self._say_ready()

        worker_ready.connect(ready, weak=False)
        worker = Worker(
            app=app,
            hostname=f"emulator@{socket.gethostname()}",
            queues=[f"deliveries.{settings.REGION}", "maintenance"],
            pool_cls="solo",
            loglevel=settings.LOG_LEVEL,
            task_events=False,
            without_gossip=True,
            without_mingle=True,
            quiet=True,
        )
        try:
            worker.start()
        finally:
            beat.stop()
        self._go_on()
        return int(worker.exitcode or 0)

    def _say_ready(self) -> None:
        host, port = settings.GRPC_ADDRESS
        if not env.is_loopback(host):
            _say(f"WARNING: whoever reaches {host}:{port} may do everything: the emulator asks for no credentials.")
        _say(f"INFO: console and REST at {env.url(settings.HTTP_ADDRESS)}/")
        _say(f"INFO: PUBSUB_EMULATOR_HOST={env.url(settings.GRPC_ADDRESS).removeprefix('http://')}")
        # Test containers wait for this line of Google's emulator.
        _say(f"INFO: Server started, listening on {port}")


@contextlib.contextmanager
def _running(server: embedded.RedisServer) -> Iterator[subprocess.Popen[bytes]]:
    """Run the embedded Redis during the block. Ctrl-C at a terminal does not reach it: it stops last."""
    with contextlib.ExitStack() as stack:
        stack.callback(server.leave)
        server.prepare()
        command = embedded.command(socket=server.socket, folder=server.folder)
        process = subprocess.Popen([*embedded.END_WITH_PARENT, *command], process_group=0)  # noqa: S603
        stack.callback(process.wait)
        stack.callback(process.terminate)
        yield process


def _wait_for_redis(server: embedded.RedisServer, process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + REDIS_SECONDS
    while process.poll() is None and time.monotonic() < give_up:
        if server.is_ready():
            return
        time.sleep(0.01)
    raise StartError("the embedded Redis does not answer")


def _say(line: str) -> None:
    print(f"[pubsub] {line}", flush=True)  # noqa: T201
