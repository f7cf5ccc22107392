"""Runs functions in sandbox processes, one for each project, so that no function can harm PushHub or other projects.

A sandbox starts at the first call for its project. There are at most `settings.TRANSFORM_SANDBOXES` of them in a
process; the one that was idle for longest makes room for another project. Threads of their own use them, in which the
projects take turns: slow functions delay calls of their own project, and others' by no more than a turn.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import orjson
from django.conf import settings
from django.db import connections

from pushhub.common.errors import ResourceExhausted
from pushhub.common.tenantpool import MOMENT_SECONDS, Again, TenantPool, step_aside
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Input, Result, Transformed

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROGRAM = Path(__file__).with_name("sandbox.py")
#: How many calls of a project may wait for their first turn, and how long a call waits for its turns.
MOST_WAITING = 1_000
WAIT_SECONDS = 10.0
#: After this time a turn ends with the next message.
TURN_SECONDS = 0.1
#: How long a thread pauses after no sandbox could be started.
START_PAUSE_SECONDS = 0.1
#: A sandbox that writes nothing for this long is ended. Its own limits are in CPU time, and shorter.
SILENCE_SECONDS = 30.0
#: Bytes of one line of an answer: 10 MB of data, each byte of which may take six in JSON.
LINE_BYTES = 64_000_000
#: Messages that a sandbox is given at a time.
GROUP_MESSAGES = 250
GROUP_BYTES = 10_000_000
NOT_TEXT = "The data is not UTF-8 text, which a function needs."
#: The first line of a process, before it takes a request.
READY = b"ready"
#: The line that ends an answer.
END = b"."
KILLED = "The function met a limit of time or memory and was ended."


class SandboxEnded(Exception):
    """The process of a sandbox ended, or had to be ended, before it had answered."""


class SandboxNotStarted(ResourceExhausted):
    """This machine has no room for another process now, which says nothing about the messages."""

    def __init__(self) -> None:
        super().__init__("No message transform can be run now. Try again later.")


class Sandbox:
    """One process. It serves one call at a time."""

    def __init__(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._socket.settimeout(SILENCE_SECONDS)
        try:
            with other_end:
                self._process = subprocess.Popen(  # noqa: S603 - PushHub's own program
                    [sys.executable, "-I", str(PROGRAM), _engine_folder()],
                    stdin=other_end.fileno(),
                    stdout=other_end.fileno(),
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
        except OSError:
            self._socket.close()
            raise
        self._answers = self._socket.makefile("rb")
        self._is_ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def send(
        self, functions: Sequence[Function], lines: Sequence[bytes], *, seconds: float = 0.0, needs_all: bool = False
    ) -> None:
        """Send a request. `lines` has a message and its metadata alternately. Raises SandboxNotStarted."""
        self._wait_for_start()
        names = [(function.name, function.code) for function in functions]
        head = orjson.dumps({"functions": names, "count": len(lines) // 2, "seconds": seconds, "all": needs_all})
        try:
            self._socket.sendall(b"\n".join([head, *lines, b""]))
        except OSError as error:
            raise SandboxEnded from error

    def _wait_for_start(self) -> None:
        """Wait until the process takes requests. What ends it before has nothing to do with any message."""
        try:
            self._is_ready = self._is_ready or self.line() == READY
        except SandboxEnded as error:
            logger.warning("a sandbox of message transforms has ended at its start")
            raise SandboxNotStarted from error

    def line(self) -> bytes:
        """Return the next line of the answer."""
        try:
            line = self._answers.readline(LINE_BYTES)
        except OSError as error:
            raise SandboxEnded from error
        if not line.endswith(b"\n"):
            raise SandboxEnded
        return line[:-1]

    def why_not_compiled(self) -> str:
        """Read the first line of an answer; return why a function cannot be compiled, or "". Nothing follows then."""
        answer = _answer(self.line())
        return answer.why if isinstance(answer, Failed) else ""


class Sandboxes:
    """The sandboxes of this process, by project, and the threads that use them, in which the projects take turns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        #: Those that are idle. The least recently used comes first.
        self._sandboxes: OrderedDict[str, Sandbox] = OrderedDict()
        self._lent = 0
        # More of them at a time would only slow each other, and the rest of PushHub.
        threads = min(max(os.cpu_count() or 1, 2), most)
        self._pool = TenantPool("functions", threads, most=1, most_waiting=MOST_WAITING, wait_seconds=WAIT_SECONDS)

    def check(self, project: str, function: Function) -> str:
        """Return why a function cannot be used, or ""."""
        return _wait(self._pool.submit(project, partial(self._why_not, project, function)))

    def run(
        self, project: str, functions: Sequence[Function], messages: Sequence[Input], *, seconds: float
    ) -> list[Result]:
        """Return the results of the first messages: as many as this time allows, but at least one.

        Raises ResourceExhausted if other calls leave no time.
        """
        return _wait(self.submit(project, functions, messages, seconds=seconds))

    def submit(
        self,
        project: str,
        functions: Sequence[Function],
        messages: Sequence[Input],
        *,
        seconds: float,
        needs_all: bool = False,
    ) -> Future[list[Result]]:
        """Return the future of what `run` returns. With `needs_all` the first failure is the last result."""
        call = _Call(self, project, functions, messages, seconds, time.monotonic() + seconds + WAIT_SECONDS, needs_all)
        return self._pool.submit(project, call)

    def close(self) -> None:
        """End all processes, after the turns that are under way."""
        self._pool.close()
        for sandbox in self._sandboxes.values():
            sandbox.close()
        self._sandboxes.clear()

    def _why_not(self, project: str, function: Function) -> str:
        with self.lent(project) as lease:
            try:
                sandbox = lease.sandbox()
                sandbox.send([function], [])
                why = sandbox.why_not_compiled()
                if not why:
                    sandbox.line()
                return why
            except SandboxEnded:
                lease.end()
                return KILLED

    @contextmanager
    def lent(self, project: str) -> Iterator[Lease]:
        """Give the caller the project's sandbox. The pool makes no two calls for a project at a time."""
        with self._lock:
            lease = Lease(self._sandboxes.pop(project, None))
            self._lent += 1
            is_full = lease.process is None and len(self._sandboxes) + self._lent > self._most
            evicted = self._sandboxes.popitem(last=False)[1] if is_full else None
        if evicted is not None:
            evicted.close()
        try:
            yield lease
        except BaseException:
            # Part of an answer may be unread.
            lease.end()
            raise
        finally:
            with self._lock:
                self._lent -= 1
                if lease.process is not None:
                    self._sandboxes[project] = lease.process


@dataclass(eq=False, slots=True)
class _Call:
    """What the threads call until each message has its result, or the time is up: once a turn."""

    _sandboxes: Sandboxes
    _project: str
    _functions: Sequence[Function]
    _messages: Sequence[Input]
    #: The time that is left, without that of others' turns, and when it ends whoever's turn it is.
    _seconds: float
    _ends: float
    _needs_all: bool
    _results: list[Result] = field(default_factory=list)
    #: Whether messages are run one by one, to find the one at which the sandbox ends.
    _alone: bool = False

    def __call__(self) -> list[Result]:
        began = time.monotonic()
        if began > self._ends:
            raise _busy()
        try:
            self._take_turn()
        except SandboxNotStarted:
            time.sleep(START_PAUSE_SECONDS)
            raise Again from None
        self._seconds -= time.monotonic() - began
        is_failed = self._needs_all and any(isinstance(result, Failed) for result in self._results[-1:])
        is_over = bool(self._results) and (self._seconds <= 0 or is_failed)
        if is_over or len(self._results) == len(self._messages):
            return self._results
        raise Again

    def _take_turn(self) -> None:
        done = len(self._results)
        group = _group(self._messages, done, most=1 if self._alone else GROUP_MESSAGES)
        seconds = min(max(self._seconds, 0.0), TURN_SECONDS)
        with self._sandboxes.lent(self._project) as lease:
            try:
                answers = _results(lease.sandbox(), self._functions, group, seconds=seconds, needs_all=self._needs_all)
                self._results.extend(answers)  # those before an error count
            except SandboxEnded:
                lease.end()
                # One of the messages is at fault, so each is run alone until that one fails.
                self._alone = len(group) > 1
                if not self._alone and len(self._results) == done:
                    self._results.append(Failed(KILLED))


class Lease:
    """The right of one call to a sandbox, which is started when it is first needed."""

    def __init__(self, process: Sandbox | None) -> None:
        self.process = process

    def sandbox(self) -> Sandbox:
        """Return the process. Raises SandboxNotStarted."""
        if self.process is None:
            try:
                self.process = Sandbox()
            except OSError as error:
                logger.warning("no sandbox of message transforms can be started: %s", error)
                raise SandboxNotStarted from error
        return self.process

    def end(self) -> None:
        """End the process. The next use starts another one."""
        if self.process is not None:
            self.process.close()
            self.process = None


@cache
def _engine_folder() -> str:
    """Return where the engine is installed, without loading it into this process."""
    spec = find_spec("_quickjs")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent)


def _wait(future: Future[T]) -> T:
    """Wait for a call. After a moment, let others have this thread's place and its connection to the database."""
    with suppress(TimeoutError):
        return future.result(MOMENT_SECONDS)
    if not step_aside():
        future.cancel()
        raise _busy()
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
    with suppress(TimeoutError):
        return future.result(WAIT_SECONDS)
    if future.cancel():
        raise _busy()
    return future.result()


def _busy() -> ResourceExhausted:
    return ResourceExhausted("The message transforms are busy. Try again later.")


def _group(messages: Sequence[Input], start: int, *, most: int) -> Sequence[Input]:
    """Return the messages from `start` on that are sent together."""
    size, end = 0, start
    while end < len(messages) and end - start < most and (end == start or size <= GROUP_BYTES):
        size += len(messages[end].data)
        end += 1
    return messages[start:end]


def _results(
    sandbox: Sandbox, functions: Sequence[Function], messages: Sequence[Input], *, seconds: float, needs_all: bool
) -> Iterator[Result]:
    texts = [_text(message) for message in messages]
    lines = [line for message, text in zip(messages, texts, strict=True) if text for line in (text, _metadata(message))]
    sandbox.send(functions, lines, seconds=seconds, needs_all=needs_all)
    why = sandbox.why_not_compiled()
    if why:
        yield from [Failed(why)] * len(messages)
        return
    for text in texts:
        if text is None:
            yield Failed(NOT_TEXT)
            continue
        line = sandbox.line()
        if line == END:
            return
        yield _answer(line)
    sandbox.line()


def _text(message: Input) -> bytes | None:
    try:
        return orjson.dumps({"data": message.data.decode(), "attributes": message.attributes})
    except UnicodeDecodeError:
        return None


def _metadata(message: Input) -> bytes:
    return orjson.dumps(message.metadata)


def _answer(line: bytes) -> Result:
    """Read a line. The process that wrote it is not trusted."""
    if line == b"null":
        return FILTERED
    try:
        if line.startswith(b"!"):
            return Failed(str(orjson.loads(line[1:])))
        content = orjson.loads(line)
        data, attributes = content["data"], content["attributes"]
        if all(isinstance(word, str) for pair in attributes.items() for word in pair):
            return Transformed(data.encode(), attributes)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    return Failed("The function returned text that is not valid Unicode.")


@cache
def sandboxes() -> Sandboxes:
    """Return the sandboxes of this process."""
    return Sandboxes(settings.TRANSFORM_SANDBOXES)


def close_sandboxes() -> None:
    """End all sandboxes of this process and their threads. Those that are needed again start again."""
    if sandboxes.cache_info().currsize:
        sandboxes().close()
        sandboxes.cache_clear()


atexit.register(close_sandboxes)
# A forked child must not use its parent's sandboxes.
os.register_at_fork(after_in_child=sandboxes.cache_clear)
