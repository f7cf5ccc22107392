"""Runs functions in sandbox processes, one for each project, so that no function can harm PushHub or other projects.

A sandbox starts at the first call for its project. There are at most `settings.TRANSFORM_SANDBOXES` of them in a
process; the one that was idle for longest makes room for another project. Calls for one project wait for each other,
and only for those: a project whose functions are slow occupies its own sandbox.
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
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import orjson
from django.conf import settings

from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Input, Result, Transformed

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("sandbox.py")
#: How long a call waits for the sandbox, and how long if enough calls of the project wait already: each of them takes a
#: thread that other projects need.
WAIT_SECONDS = 10.0
SHORT_WAIT_SECONDS = 0.25
#: A sandbox that writes nothing for this long is ended. Its own limits are in CPU time, and shorter.
SILENCE_SECONDS = 30.0
#: Bytes of one line of an answer: 10 MB of data, each byte of which may take six in JSON.
LINE_BYTES = 64_000_000
#: Messages that a sandbox is given at a time.
GROUP_MESSAGES = 250
GROUP_BYTES = 10_000_000
NOT_TEXT = "The data is not UTF-8 text, which a function needs."
#: The line that ends an answer.
END = b"."
KILLED = "The function met a limit of time or memory and was ended."


class SandboxEnded(Exception):
    """The process of a sandbox ended, or had to be ended, before it had answered."""


class Sandbox:
    """One process. It serves one call at a time."""

    def __init__(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._socket.settimeout(SILENCE_SECONDS)
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
        self._answers = self._socket.makefile("rb")

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
        """Send a request. `lines` has a message and its metadata alternately."""
        names = [(function.name, function.code) for function in functions]
        head = orjson.dumps({"functions": names, "count": len(lines) // 2, "seconds": seconds, "all": needs_all})
        try:
            self._socket.sendall(b"\n".join([head, *lines, b""]))
        except OSError as error:
            raise SandboxEnded from error

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
    """The sandboxes of this process, by project."""

    def __init__(self, most: int, *, patient: int = 1) -> None:
        """`patient` is how many calls of one project may wait for long."""
        self._most = most
        self._patient = patient
        self._waiting: Counter[str] = Counter()
        self._changed = threading.Condition()
        #: The least recently used comes first.
        self._sandboxes: OrderedDict[str, Sandbox] = OrderedDict()
        self._busy: set[str] = set()

    def check(self, project: str, function: Function) -> str:
        """Return why a function cannot be used, or ""."""
        with self._lent(project) as lease:
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

    def run(
        self,
        project: str,
        functions: Sequence[Function],
        messages: Sequence[Input],
        *,
        seconds: float,
        needs_all: bool = False,
    ) -> list[Result]:
        """Return the results of the first messages: as many as this time allows, but at least one.

        With `needs_all` the first failure is the last result. Raises ResourceExhausted if the project's other calls
        leave no time.
        """
        results: list[Result] = []
        ends = time.monotonic() + seconds
        alone = False
        with self._lent(project) as lease:
            while len(results) < len(messages):
                left = ends - time.monotonic()
                if results and (left <= 0 or (needs_all and isinstance(results[-1], Failed))):
                    break
                group = _group(messages, len(results), most=1 if alone else GROUP_MESSAGES)
                wanted = len(results) + 1
                try:
                    answers = _results(lease.sandbox(), functions, group, seconds=max(left, 0.0), needs_all=needs_all)
                    for result in answers:
                        results.append(result)  # noqa: PERF402 - those before an error count
                except SandboxEnded:
                    lease.end()
                    # One of the messages is at fault, so each is run alone until that one fails.
                    alone = len(group) > 1
                    if not alone and len(results) < wanted:
                        results.append(Failed(KILLED))
        return results

    def close(self) -> None:
        """End all processes that are idle."""
        with self._changed:
            idle = [project for project in self._sandboxes if project not in self._busy]
            closing = [self._sandboxes.pop(project) for project in idle]
        for sandbox in closing:
            sandbox.close()

    @contextmanager
    def _lent(self, project: str) -> Iterator[Lease]:
        """Give the caller exclusive use of the project's sandbox."""
        lease = self._take(project)
        try:
            yield lease
        except BaseException:
            # Part of an answer may be unread.
            lease.end()
            raise
        finally:
            with self._changed:
                if lease.process is not None:
                    self._sandboxes[project] = lease.process
                self._busy.discard(project)
                self._changed.notify_all()

    def _take(self, project: str) -> Lease:
        evicted = None
        with self._changed:
            if not self._wait(project):
                raise ResourceExhausted("The message transforms of the project are busy. Try again later.")
            self._busy.add(project)
            sandbox = self._sandboxes.pop(project, None)
            # The sandboxes of busy projects are not in `_sandboxes`.
            if sandbox is None and len(self._sandboxes) + len(self._busy) > self._most:
                evicted = self._sandboxes.popitem(last=False)[1]
        if evicted is not None:
            evicted.close()
        return Lease(sandbox)

    def _wait(self, project: str) -> bool:
        """Wait until the project can have its sandbox; return whether it can."""
        seconds = WAIT_SECONDS if self._waiting[project] < self._patient else SHORT_WAIT_SECONDS
        self._waiting[project] += 1
        try:
            return self._changed.wait_for(lambda: self._is_free(project), seconds)
        finally:
            self._waiting[project] -= 1
            if not self._waiting[project]:
                del self._waiting[project]

    def _is_free(self, project: str) -> bool:
        return project not in self._busy and (project in self._sandboxes or len(self._busy) < self._most)


class Lease:
    """The right of one call to a sandbox, which is started when it is first needed."""

    def __init__(self, process: Sandbox | None) -> None:
        self.process = process

    def sandbox(self) -> Sandbox:
        if self.process is None:
            self.process = Sandbox()
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
    # With the call that they wait for, they take half of the threads.
    return Sandboxes(settings.TRANSFORM_SANDBOXES, patient=max(settings.WEB_THREADS // 2 - 1, 1))


def sandboxes_close() -> None:
    """End all idle sandboxes of this process. Those that are needed again start again."""
    if sandboxes.cache_info().currsize:
        sandboxes().close()


atexit.register(sandboxes_close)
# A forked child must not use its parent's sandboxes.
os.register_at_fork(after_in_child=sandboxes.cache_clear)
