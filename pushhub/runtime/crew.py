"""Runs processes side by side: prefixes their output, reports when each is ready, restarts and stops them.

honcho runs the processes and prints their output. Its manager isn't used, because it ends all processes when one ends.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import queue
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TextIO

import honcho.process
from honcho.colour import get_colours
from honcho.printer import Message, Printer

from pushhub.runtime.forkserver import ForkedProcess, ForkServer
from pushhub.runtime.processes import Process

#: Pauses before a restart. They double from the first to the last.
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0

#: A process that has ended this many times and was never ready is not started again.
MAX_FAILED_STARTS = 3

#: How long a process may take to stop. The push worker completes its requests or gives its messages back.
STOP_SECONDS = 30.0

#: Pauses between two looks at whether a process is ready.
FIRST_PROBE_SECONDS = 0.1
LAST_PROBE_SECONDS = 2.0

#: The prefix of a command line whose process ends with this one, even if this one is killed. It needs setpriv.
END_WITH_PARENT = [path, "--pdeathsig", "TERM", "--"] if (path := shutil.which("setpriv")) else []

OWN_NAME = "pushhub"
NAME_WIDTH = len("maintenance")


class StartError(Exception):
    """PushHub can't start; the text is the one line that the user sees."""


@dataclass
class Member:
    """One process of the crew and its state. Each start of the process begins a new life."""

    process: Process
    colour: str
    pid: int = 0
    life: int = 0
    is_running: bool = False
    is_ready: bool = False
    was_ever_ready: bool = False
    is_given_up: bool = False
    failures: int = 0
    restart_at: float | None = None
    probe_error: str = ""
    ended: threading.Event = field(default_factory=threading.Event)


class Crew:
    """The processes of one `make up`. Probes and readers of output have threads; all else runs in the caller's."""

    def __init__(self, output: TextIO | None = None, *, fork_server: ForkServer | None = None) -> None:
        self.is_stopping = False
        self._fork_server = fork_server
        self._signals = 0
        self._members: dict[str, Member] = {}
        self._events: queue.Queue[Message] = queue.Queue()
        self._colours: Iterator[str] = get_colours()
        self._printer = Printer(output or sys.stdout, time_format="", width=NAME_WIDTH)

    def say(self, line: str) -> None:
        """Print a line of the supervisor, in the form of the processes' lines."""
        self._print(Message("line", line, datetime.datetime.now(datetime.UTC), OWN_NAME, None))

    def start(self, process: Process) -> None:
        """Start a process for the first time; `turn` and `keep` watch and restart it from then on."""
        self._members[process.name] = Member(process, next(self._colours))
        self._spawn(self._members[process.name])

    def is_ready(self) -> bool:
        """Whether every process is ready, or has been given up."""
        return all(member.is_ready or member.is_given_up for member in self._members.values())

    def not_ready(self) -> str:
        """Return the processes that are not ready yet, each with the error of its last probe."""
        waiting = [member for member in self._members.values() if not (member.is_ready or member.is_given_up)]
        return "; ".join(f"{member.process.title} {member.probe_error}".strip() for member in waiting)

    def ask_to_stop(self) -> None:
        """Stop soon; called by signal handlers. A second call kills the processes without waiting for them."""
        self.is_stopping = True
        self._signals += 1

    def keep(self, *, each_turn: Callable[[], None] = lambda: None) -> None:
        """Watch and restart the processes until asked to stop."""
        while not self.is_stopping:
            self.turn(0.5)
            each_turn()

    def turn(self, seconds: float) -> None:
        """Handle the events of the next `seconds`, then restart the processes that are due."""
        give_up = time.monotonic() + seconds
        while (left := give_up - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._handle(self._events.get(timeout=min(left, 0.1)))
            if self.is_stopping:
                break
        self._sweep()
        for member in self._members.values():
            if member.restart_at is not None and member.restart_at <= time.monotonic() and not self.is_stopping:
                self._spawn(member)

    def stop(self) -> None:
        """Stop every process, and those that others depend on last. No process is left behind."""
        self.is_stopping = True
        if any(member.is_running for member in self._members.values()):
            self.say("stopping: outstanding pushes are completed or given back first")
        self._stop_round([member for member in self._members.values() if not member.process.is_base])
        self._stop_round([member for member in self._members.values() if member.process.is_base])
        if self._members:
            self.say("everything has stopped")

    def _stop_round(self, members: list[Member]) -> None:
        running = [member for member in members if member.is_running]
        for member in running:
            if member.process.on_stop:
                member.process.on_stop()
        signalled: set[str] = set()
        give_up = time.monotonic() + STOP_SECONDS
        signals = self._signals
        while any(member.is_running for member in running):
            for member in running:
                if member.pid and member.process.name not in signalled:
                    signalled.add(member.process.name)
                    _signal(member.pid, signal.SIGTERM)
            if time.monotonic() > give_up or self._signals > signals:
                for member in running:
                    _signal_group(member.pid, signal.SIGKILL)
            with contextlib.suppress(queue.Empty):
                self._handle(self._events.get(timeout=0.1))
            self._sweep()

    def _spawn(self, member: Member) -> None:
        process = member.process
        member.life += 1
        member.pid, member.is_running, member.is_ready, member.restart_at = 0, True, False, None
        member.ended = threading.Event()
        runner = honcho.process.Process(
            f"exec {shlex.join([*END_WITH_PARENT, *process.command])}",
            name=process.name,
            colour=member.colour,
            env={**os.environ, **process.environment},
        )
        if self._fork_server is not None and self._fork_server.can_run(process.command):
            runner._child_ctor = partial(self._fork, self._fork_server, process)
        threading.Thread(target=self._run, args=(runner,), daemon=True).start()
        threading.Thread(target=self._probe, args=(member, member.life, member.ended), daemon=True).start()

    @staticmethod
    def _fork(
        fork_server: ForkServer, process: Process, command: str, *, env: Mapping[str, str], cwd: str | None
    ) -> ForkedProcess | honcho.process.Popen:
        """Start a process by a fork or, if the fork server has ended, by its command line."""
        try:
            return fork_server.start(process.command, env)
        except OSError:
            return honcho.process.Popen(command, env=env, cwd=cwd)

    def _run(self, runner: honcho.process.Process) -> None:
        """Run a process; called in a thread of its own. After an error in the thread, the process is restarted."""
        try:
            runner.run(self._events)
        except Exception as error:
            now = datetime.datetime.now(datetime.UTC)
            self._events.put(Message("line", f"cannot be run: {error}", now, runner.name, runner.colour))
            if runner._child is not None:
                _signal_group(runner._child.pid, signal.SIGKILL)
                runner._child.stdout.close()
                runner._child.wait()
            self._events.put(Message("stop", {"returncode": os.EX_OSERR}, None, runner.name, None))

    def _probe(self, member: Member, life: int, ended: threading.Event) -> None:
        """Probe the process until it is ready or has ended; called in a thread of its own, as a probe may block."""
        pause = FIRST_PROBE_SECONDS
        while not ended.wait(pause):
            pause = min(LAST_PROBE_SECONDS, 1.2 * pause)
            try:
                if member.process.is_ready():
                    self._events.put(Message("ready", life, None, member.process.name, None))
                    return
                member.probe_error = "does not answer"
            except Exception as error:  # shown if the process does not become ready
                member.probe_error = f"does not answer ({error!r})"

    def _handle(self, message: Message) -> None:
        member = self._members[message.name]
        if message.type == "line":
            self._print(message)
        elif message.type == "start":
            member.pid = message.data["pid"]
        elif message.type == "ready" and message.data == member.life and member.is_running:
            self._became_ready(member)
        elif message.type == "stop":
            self._stopped(member, message.data["returncode"])

    def _became_ready(self, member: Member) -> None:
        again = " again" if member.was_ever_ready else ""
        member.is_ready = member.was_ever_ready = True
        if not self.is_stopping:
            self.say(f"ready{again}: {member.process.title} {member.process.where}")

    def _stopped(self, member: Member, status: int) -> None:
        member.failures = 1 if member.is_ready else member.failures + 1
        member.is_running = member.is_ready = False
        member.ended.set()
        if self.is_stopping:
            return
        how = f"signal {-status}" if status < 0 else f"status {status}"
        title = member.process.title
        if not member.was_ever_ready and member.failures >= MAX_FAILED_STARTS:
            line = f"{title} ended {member.failures} times ({how}) and was never ready: see its lines above"
            if not member.process.is_optional:
                raise StartError(line)
            member.is_given_up = True
            self.say(f"{line}; PushHub goes on without it")
            return
        pause = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (member.failures - 1))
        member.restart_at = time.monotonic() + pause
        self.say(f"{title} ended ({how}): starting it again in {pause:.1f} s")

    def _sweep(self) -> None:
        """End the children of processes that have ended: they would keep its port and its output open."""
        for member in self._members.values():
            if member.pid and member.is_running and _has_ended(member.pid):
                _signal_group(member.pid, signal.SIGKILL)

    def _print(self, message: Message) -> None:
        if not message.data.strip():
            return
        try:
            self._printer.write(message)
        except OSError:  # nobody reads the output any more
            self._printer.output = open(os.devnull, "w")  # noqa: PTH123, SIM115
            self.is_stopping = True


def _has_ended(pid: int) -> bool:
    """Whether a child process has ended. Its exit status is left to its reader thread."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False  # the reader thread has its exit status


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
