"""Runs processes side by side: prefixes their output, reports when each is ready, restarts and stops them."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from pushhub.common.environment import StartError
from pushhub.runtime.forking import Child, fork_and_call, start_process
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
#: How long the crew waits for output before it looks for processes that have ended.
LOOK_SECONDS = 0.1

OWN_NAME = "pushhub"
NAME_WIDTH = len("maintenance")
#: ANSI codes of the colours on a terminal: cyan, yellow, green, magenta, red, blue.
COLOURS = (36, 33, 32, 35, 31, 34)
READ_BYTES = 65_536


@dataclass(eq=False)
class Member:
    """One process of the crew and its state. A probe is a child too, as it may block; its output is an error."""

    process: Process
    colour: int
    child: Child | None = None
    #: What the process has written of a line.
    line: bytes = b""
    probe: Child | None = None
    probe_at: float = 0.0
    probe_pause: float = 0.0
    probe_error: str = ""
    is_ready: bool = False
    was_ever_ready: bool = False
    is_given_up: bool = False
    failures: int = 0
    restart_at: float | None = None

    @property
    def is_settled(self) -> bool:
        return self.is_ready or self.is_given_up


class Crew:
    """The processes of one `make up`."""

    def __init__(self, output: TextIO | None = None) -> None:
        self.is_stopping = False
        self._signals = 0
        self._members: dict[str, Member] = {}
        self._outputs = selectors.DefaultSelector()
        self._colours: Iterator[int] = itertools.cycle(COLOURS)
        self._printed = output or sys.stdout

    def say(self, line: str) -> None:
        """Print a line of the supervisor, in the form of the processes' lines."""
        self._print(OWN_NAME, line)

    def start(self, process: Process) -> None:
        """Start a process for the first time; `turn` and `keep` watch and restart it from then on."""
        self._members[process.name] = Member(process, next(self._colours))
        self._spawn(self._members[process.name])

    def is_ready(self) -> bool:
        """Whether every process is ready, or has been given up."""
        return all(member.is_settled for member in self._members.values())

    def not_ready(self) -> str:
        """Return the processes that are not ready yet, each with the error of its last probe."""
        waiting = [member for member in self._members.values() if not member.is_settled]
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
        """Print and probe for `seconds`, then restart the processes that are due."""
        give_up = time.monotonic() + seconds
        while not self.is_stopping and (left := give_up - time.monotonic()) > 0:
            self._look(min(left, LOOK_SECONDS))
            for member in self._members.values():
                self._probe(member)
        for member in self._members.values():
            if member.restart_at is not None and member.restart_at <= time.monotonic() and not self.is_stopping:
                self._spawn(member)

    def stop(self) -> None:
        """Stop every process, and those that others depend on last. No process is left behind."""
        self.is_stopping = True
        if any(member.child for member in self._members.values()):
            self.say("stopping: outstanding pushes are completed or given back first")
        self._stop_round([member for member in self._members.values() if not member.process.is_base])
        self._stop_round([member for member in self._members.values() if member.process.is_base])
        self._outputs.close()
        if self._members:
            self.say("everything has stopped")

    def _stop_round(self, members: list[Member]) -> None:
        running = [member for member in members if member.child]
        for member in running:
            if member.process.on_stop:
                member.process.on_stop()
        for member in running:
            assert member.child is not None
            os.kill(member.child.pid, signal.SIGTERM)
        give_up = time.monotonic() + STOP_SECONDS
        signals = self._signals
        while any(member.child for member in running):
            if time.monotonic() > give_up or self._signals > signals:
                for member in running:
                    _kill_group(member.child)
            self._look(LOOK_SECONDS)

    def _spawn(self, member: Member) -> None:
        member.restart_at = None
        try:
            member.child = start_process(member.process.command, {**os.environ, **member.process.environment})
        except OSError as error:
            self._print(member.process.name, f"cannot be run: {error}", member.colour)
            self._note_end(member, os.EX_OSERR)
            return
        os.set_blocking(member.child.output, False)
        self._outputs.register(member.child.output, selectors.EVENT_READ, member)
        member.probe_pause = FIRST_PROBE_SECONDS
        member.probe_at = time.monotonic() + FIRST_PROBE_SECONDS

    def _look(self, seconds: float) -> None:
        """Wait for output and print it, then see which processes have ended."""
        for key, _ in self._outputs.select(seconds):
            self._read(key.data)
        for member in self._members.values():
            if member.child and _has_ended(member.child):
                self._end(member)

    def _read(self, member: Member) -> bool:
        """Print what the process has written. Return whether there may be more."""
        assert member.child is not None
        try:
            data = os.read(member.child.output, READ_BYTES)
        except BlockingIOError:
            return False
        *lines, member.line = (member.line + data).split(b"\n")
        if not data:  # the end; a process may close its output and go on
            lines, member.line = [member.line], b""
            self._outputs.unregister(member.child.output)
        for line in lines:
            self._print(member.process.name, line.decode(errors="replace"), member.colour)
        return bool(data)

    def _end(self, member: Member) -> None:
        """Take leave of a process that has ended, and end its children: they would keep its port open."""
        assert member.child is not None
        _kill_group(member.child)
        if member.child.output in self._outputs.get_map():
            while self._read(member):
                pass
        with contextlib.suppress(KeyError):
            self._outputs.unregister(member.child.output)
        if member.probe:
            _kill_group(member.probe)
            member.probe.wait_for_exit()
            member.probe = None
        status, member.child = member.child.wait_for_exit(), None
        self._note_end(member, status)

    def _probe(self, member: Member) -> None:
        """Begin a probe of a process that isn't ready, or note its result."""
        if member.probe and _has_ended(member.probe):
            error = os.read(member.probe.output, READ_BYTES).decode(errors="replace").strip()
            status, member.probe = member.probe.wait_for_exit(), None
            if status == 0:
                again = " again" if member.was_ever_ready else ""
                member.is_ready = member.was_ever_ready = True
                self.say(f"ready{again}: {member.process.title} {member.process.where}")
                return
            last = error.rpartition("\n")[2]
            member.probe_error = f"does not answer ({last})" if last else "does not answer"
            member.probe_pause = min(LAST_PROBE_SECONDS, 1.2 * member.probe_pause)
            member.probe_at = time.monotonic() + member.probe_pause
        elif member.child and not member.is_ready and not member.probe and member.probe_at <= time.monotonic():
            member.probe = fork_and_call(lambda: int(not member.process.is_ready()))

    def _note_end(self, member: Member, status: int) -> None:
        member.failures = 1 if member.is_ready else member.failures + 1
        member.is_ready = False
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

    def _print(self, name: str, line: str, colour: int | None = None) -> None:
        if not line.strip():
            return
        prefix = f" {name:<{NAME_WIDTH}} | "
        try:
            if colour and self._printed.isatty() and "NO_COLOR" not in os.environ:
                prefix = f"\033[{colour}m{prefix}\033[0m"
            print(f"{prefix}{line}", file=self._printed, flush=True)
        except OSError:  # nobody reads the output any more
            self._printed = open(os.devnull, "w")  # noqa: PTH123, SIM115
            self.is_stopping = True


def _has_ended(child: Child) -> bool:
    """Whether a child process has ended. Its id stays its own until its exit status is taken."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(child: Child | None) -> None:
    if child:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
