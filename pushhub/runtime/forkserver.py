"""Starts PushHub's Python processes as forks of one that has imported everything. They start faster and share memory.

The fork server is forked from the supervisor before the supervisor has any thread, and has none itself. It imports
while the supervisor prepares Redis and the database. For each request it forks twice, so that the new process becomes a
child of the supervisor, as if the supervisor had started it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from io import BufferedReader
from types import SimpleNamespace
from typing import NoReturn

import setproctitle

#: The modules that the processes import beside Django's apps.
LIBRARIES = (
    "celery.__main__",
    "celery.apps.worker",
    "celery.beat",
    "celery.bin.celery",
    "celery.concurrency.solo",
    "deliveries.api.direct",
    "deliveries.push.worker",
    "deliveries.rpc.snapshots",
    "deliveries.rpc.streaming",
    "deliveries.tasks",
    "grpc.aio",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "pushhub.celery",
    "pushhub.runtime.grpcserver",
    "pushhub.runtime.monitor",
    "pushhub.runtime.webserver",
    "pushhub.urls",
    "pushhub.wsgi",
    "subscriptions.rpc.schemas",
    "subscriptions.rpc.subscriptions",
    "subscriptions.tasks",
)
#: Those of the modules that the supervisor needs as well.
SHARED = ("deliveries.push.transport", "pushhub.celery")
#: The modules that can be run, and for each the module with its `main`.
MODULES = {
    "celery": "celery.__main__",
    "pushhub.runtime.grpcserver": "pushhub.runtime.grpcserver",
    "pushhub.runtime.monitor": "pushhub.runtime.monitor",
    "pushhub.runtime.webserver": "pushhub.runtime.webserver",
}

REQUEST_BYTES = 1024 * 1024
#: Options of Linux' prctl.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


class ForkedProcess:
    """A running process with the part of subprocess.Popen that honcho needs."""

    def __init__(self, pid: int, stdout: BufferedReader) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None

    def wait(self) -> int:
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class ForkServer:
    """The supervisor's handle of the fork server."""

    def __init__(self) -> None:
        """Fork the process. Django must be set up, and the calling process must have no other thread."""
        self._lock = threading.Lock()
        self._socket, server_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for name in SHARED:
            import_module(name)
        _freeze()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            _be_fork_server(server_socket)
        server_socket.close()

    @staticmethod
    def can_run(command: Sequence[str]) -> bool:
        """Whether the fork server can run a command line."""
        return list(command[:2]) == [sys.executable, "-m"] and command[2] in MODULES

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess:
        """Start the process of a command line that `can_run`; its output and errors go to one pipe.

        Raises OSError if the fork server has ended.
        """
        output, output_end = os.pipe()
        request = json.dumps({"words": list(command[2:]), "environment": dict(environment)}).encode()
        with self._lock:
            # Only for this call: orphans of other processes would become children that nobody waits for.
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._socket, [request], [output_end])
                pid = int(self._socket.recv(64) or 0)
            finally:
                _libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
                os.close(output_end)
        if not pid:
            os.close(output)
            raise BrokenPipeError("the fork server has ended")
        return ForkedProcess(pid, os.fdopen(output, "rb"))

    def close(self) -> None:
        """End the fork server. The processes that it has started go on."""
        self._socket.close()
        os.waitpid(self._pid, 0)


def _freeze() -> None:
    """Keep the garbage collector from writing to existing objects: their pages would no longer be shared."""
    gc.collect()
    gc.freeze()


def _be_fork_server(requests: socket.socket) -> NoReturn:
    """Import everything and serve. If this fails, the supervisor goes on without a fork server."""
    os.setsid()
    setproctitle.setproctitle("pushhub: fork server")
    # Celery's command line imports it for an interactive shell, and with it 160 modules for terminals.
    sys.modules.setdefault("click_repl", SimpleNamespace(register_repl=lambda _group: None))  # type: ignore[arg-type]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in LIBRARIES:
                import_module(name)
        _freeze()
        _serve(requests)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _serve(requests: socket.socket) -> NoReturn:
    """Fork a process for each request, until the supervisor has ended."""
    while True:
        data, (*files,), _, _ = socket.recv_fds(requests, REQUEST_BYTES, 1)
        if not data:
            os._exit(0)
        pid_pipe, pid_pipe_end = os.pipe()
        between = os.fork()
        if not between:
            os.close(pid_pipe)
            _fork_again(requests, json.loads(data), files[0], pid_pipe_end)
        os.close(pid_pipe_end)
        os.close(files[0])
        os.waitpid(between, 0)
        with os.fdopen(pid_pipe, "rb") as pipe:
            requests.send(pipe.read())


def _fork_again(requests: socket.socket, request: dict[str, object], output: int, pid_pipe_end: int) -> NoReturn:
    """Fork the process itself, send its id to the fork server, and run it once its parent is the supervisor."""
    between = os.getpid()
    pid = os.fork()
    if pid:
        os.write(pid_pipe_end, str(pid).encode())
        os._exit(0)
    requests.close()
    os.close(pid_pipe_end)
    while os.getppid() == between:
        time.sleep(0.001)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os._exit(_run(**request))  # type: ignore[arg-type]


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Do what `python -m {words}` does, and return the exit status."""
    os.environ.clear()
    os.environ.update(environment)
    module, *arguments = words
    sys.argv = [str(sys.modules[MODULES[module]].__file__), *arguments]
    setproctitle.setproctitle(" ".join(["pushhub:", "python -m", *words]))
    try:
        import_module(MODULES[module]).main()
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    _finish()
    return status


def _finish() -> None:
    """Do what the interpreter does at its end and `os._exit` leaves out."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
