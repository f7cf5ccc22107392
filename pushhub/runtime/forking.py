"""Starts processes as forks of the supervisor. It has imported everything, so they start fast and share its memory.

A fork has only the thread that called it, but also the locks that others hold. So the supervisor has no other threads.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import NoReturn

import setproctitle

#: The modules that can be run, and for each the module with its `main`.
MODULES = {
    "celery": "celery.__main__",
    "pushhub.runtime.grpcserver": "pushhub.runtime.grpcserver",
    "pushhub.runtime.monitor": "pushhub.runtime.monitor",
    "pushhub.runtime.webserver": "pushhub.runtime.webserver",
}
#: The modules that the processes import beside Django's apps.
LIBRARIES = (
    "celery.apps.worker",
    "celery.beat",
    "celery.bin.celery",
    "celery.concurrency.solo",
    "deliveries.api.direct",
    "deliveries.push.bootsteps",
    "deliveries.rpc.snapshots",
    "deliveries.rpc.streaming",
    "deliveries.tasks",
    "grpc.aio",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "pushhub.celery",
    "pushhub.urls",
    "pushhub.wsgi",
    "subscriptions.rpc.resources",
    "subscriptions.tasks",
    *MODULES.values(),
)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: An option of Linux' prctl.
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
# It finds the memory of the command line at the first call, and only before the environment changes.
setproctitle.getproctitle()


@dataclass(frozen=True)
class Child:
    """A child process, which leads a session of its own. `output` is the pipe with what it writes."""

    pid: int
    output: int

    def wait_for_exit(self) -> int:
        """Close the pipe, and return the exit status, or the number of the signal that ended the child, negated."""
        os.close(self.output)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def import_everything() -> None:
    """Import what the processes need. Django must be set up."""
    # Celery's command line imports it for an interactive shell, and with it 160 modules for terminals.
    sys.modules.setdefault("click_repl", SimpleNamespace(register_repl=lambda _group: None))  # type: ignore[arg-type]
    # Modules are no garbage: to look for it takes a fifth of their import.
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LIBRARIES:
            import_module(name)
    # Keep the garbage collector from writing to existing objects: their pages would no longer be shared.
    gc.collect()
    gc.freeze()
    gc.enable()


def start_process(command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start the process of a command line: a module of `MODULES` without a new Python, as `fork_and_call` does."""
    if list(command[:2]) == [sys.executable, "-m"] and command[2] in MODULES:
        return fork_and_call(partial(_run_module, command[2:], environment))
    return fork_and_call(partial(os.execvpe, command[0], list(command), environment))


def fork_and_call(call: Callable[[], int]) -> Child:
    """Call `call` in a new process, whose exit status is what it returns. On Linux, the process ends with this one."""
    output, output_end = os.pipe()
    parent = os.getpid()
    # A signal to the child waits until the parent's handlers are gone.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            _be_child(call, parent=parent, output=output_end)
    except OSError:
        os.close(output)
        raise
    finally:
        os.close(output_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Child(pid, output)


def _be_child(call: Callable[[], int], *, parent: int, output: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        if sys.platform == "linux":
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the lock of the data folder, and the pipes of other children
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = call()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # a Ctrl-C that came before the child had a session of its own
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_module(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Do what `python -m {words}` does, also what the interpreter does at its end and `os._exit` leaves out."""
    os.environ.clear()
    os.environ.update(environment)
    module, *arguments = words
    sys.argv = [str(sys.modules[MODULES[module]].__file__), *arguments]
    setproctitle.setproctitle(" ".join(["pushhub:", "python -m", *words]))
    try:
        import_module(MODULES[module]).main()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    return 0
