"""The program of a sandbox process: it runs the functions of one project's message transforms in QuickJS.

`sandboxes.py` starts it as `python -I sandbox.py FOLDER` with an empty environment. FOLDER has the module _quickjs,
which may be in a place where an isolated Python doesn't look. Of PushHub the program loads only `systemcalls.py`, and
once it runs it can open no file and no socket. Standard input and output are one socket, which carries lines of JSON:

    request   {"functions": [[name, code], ...], "count": n, "seconds": s, "all": true or false}, then n times a message
              and its metadata
    answer    null, or !"why" if a function cannot be compiled; then for each message, in order, the message that comes
              out of the last function, null if a function filtered it, or !"why" if a function failed; then a dot

If the time or the room for an answer runs out, or with "all" a function fails, the dot comes before the last messages
are answered. A request is read to its end before the first line of the answer is written. The end of input ends
the process.

A function that QuickJS doesn't interrupt, because a single native operation takes too long, ends the process.
"""

from __future__ import annotations

import json
import os
import re
import resource
import runpy
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

sys.path.append(sys.argv[1])
# The package quickjs starts a thread, which the filter of system calls would not hold.
import _quickjs as quickjs

#: CPU time that a call of a function, or the top level of its code, has (docs/spec-delivery.md#message-transforms).
CALL_SECONDS = 0.5
#: CPU time after which the kernel ends the process.
KILL_SECONDS = 1.0
#: The heap of one function.
HEAP_BYTES = 128 * 1024 * 1024
#: The address space of the process.
PROCESS_BYTES = 640 * 1024 * 1024
#: More recursion is a RangeError.
STACK_BYTES = 512 * 1024
#: Functions that stay compiled.
KEPT_FUNCTIONS = 16
#: A context is replaced after this many calls, so that nothing that a function keeps can grow for ever.
CALLS_PER_CONTEXT = 10_000
#: An answer ends after this many bytes.
ANSWER_BYTES = 32_000_000
#: Written lines are sent after this time at the latest, so that little is repeated if the process ends.
FLUSH_SECONDS = 0.001
#: Characters of an error's text.
ERROR_CHARACTERS = 300
#: A call in the stack of an error, and where code that doesn't compile has its error.
CALLED = re.compile(r"^    at (\S+) \(<input>:(\d+):", re.MULTILINE)
PARSED = re.compile(r"^    at <input>:(\d+):", re.MULTILINE)

#: Makes `call(function, message, metadata)` from JSON texts, and removes what ECMAScript doesn't have. It keeps the
#: built-ins that it needs, so that it works whatever the user's code does to them.
PROLOGUE = """
(() => {
  "use strict";
  const { parse, stringify } = JSON;
  const { freeze, keys } = Object;
  const { isArray } = Array;
  const Failure = TypeError;
  for (const name of ["atob", "btoa", "performance", "queueMicrotask", "navigator", "console", "print", "gc",
                      "std", "os", "bjson", "scriptArgs"]) {
    delete globalThis[name];
  }
  return function transformed(transform, text, metadata) {
    const result = transform(parse(text), freeze(parse(metadata)));
    if (result === null) return null;
    if (typeof result !== "object" || isArray(result)) {
      throw new Failure("The function must return an object with data, or null.");
    }
    const data = result.data, attributes = result.attributes;
    if (typeof data !== "string") throw new Failure("The data of the returned message must be a string.");
    if (data.length > 10000000) throw new Failure("The returned message is larger than 10 MB.");
    const copy = { __proto__: null };
    if (attributes !== undefined && attributes !== null) {
      if (typeof attributes !== "object" || isArray(attributes)) {
        throw new Failure("The attributes of the returned message must be an object.");
      }
      const names = keys(attributes);
      if (names.length > 100) throw new Failure("The returned message has more than 100 attributes.");
      for (let index = 0; index < names.length; index++) {
        const value = attributes[names[index]];
        if (typeof value !== "string") throw new Failure("The attributes of the returned message must be strings.");
        copy[names[index]] = value;
      }
    }
    return stringify({ __proto__: null, data, attributes: copy });
  };
})()
"""

#: The name of that function in stacks. Its lines are not those of a user's code.
OURS = "transformed"
Call = Callable[[str, str], "str | None"]


class Compiled:
    """A function in a context of its own."""

    def __init__(self, name: str, code: str) -> None:
        self._name = name
        self._code = code
        self.renew()

    def __call__(self, message: str, metadata: str) -> str | None:
        if self._calls >= CALLS_PER_CONTEXT:
            self.renew()
        self._calls += 1
        return self._call(message, metadata)

    def renew(self) -> None:
        """Replace the context."""
        self._calls = 0
        self._call = self._compile()

    def _compile(self) -> Call:
        context = quickjs.Context()
        context.set_memory_limit(HEAP_BYTES)
        context.set_max_stack_size(STACK_BYTES)
        context.set_time_limit(CALL_SECONDS)
        call = context.eval(PROLOGUE)
        context.eval(self._code)
        if context.eval(f"typeof {self._name}") != "function":
            raise quickjs.JSException(f"The code has no function {self._name}.")
        function = context.eval(self._name)
        return lambda message, metadata: call(function, message, metadata)


class Functions:
    """The compiled functions, the least recently used first."""

    def __init__(self) -> None:
        self._compiled: OrderedDict[tuple[str, str], Compiled] = OrderedDict()

    def get(self, name: str, code: str) -> Compiled:
        compiled = self._compiled.pop((name, code), None)
        if compiled is None:
            arm()
            if len(self._compiled) >= KEPT_FUNCTIONS:
                self._compiled.popitem(last=False)
            compiled = Compiled(name, code)
        self._compiled[name, code] = compiled
        return compiled


def main() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    confine()
    answers.write(b"ready\n")
    answers.flush()
    functions = Functions()
    while line := requests.readline():
        request = json.loads(line)
        pairs = [(text(requests), text(requests)) for _ in range(request["count"])]
        answer(answers, functions, request, pairs)
        disarm()
        answers.flush()


def confine() -> None:
    """Give up what this program doesn't need: memory, files, sockets, nearly all system calls."""
    restrict_calls = runpy.run_path(str(Path(__file__).with_name("systemcalls.py")))["restrict_calls"]
    os.nice(10)
    # Where memory runs out, the kernel ends this process rather than the server that started it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    for limit, value in (
        (resource.RLIMIT_AS, PROCESS_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        # Standard input, output and error are open; nothing else can be opened.
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(limit, (value, value))
    restrict_calls()


def text(requests: BinaryIO) -> str:
    return requests.readline().decode()


def answer(
    answers: BinaryIO, functions: Functions, request: Mapping[str, Any], pairs: Sequence[tuple[str, str]]
) -> None:
    """Write the lines of one answer."""
    began = flushed = time.monotonic()
    try:
        chain = [functions.get(name, code) for name, code in request["functions"]]
    except Exception as error:
        answers.write(failure(error))
        return
    answers.write(b"null\n")
    size = 0
    for line in lines(chain, pairs):
        answers.write(line)
        size += len(line)
        now = time.monotonic()
        if now - flushed > FLUSH_SECONDS:
            answers.flush()
            flushed = now
        if size > ANSWER_BYTES or now - began > request["seconds"] or (request["all"] and line.startswith(b"!")):
            break
    answers.write(b".\n")


def lines(chain: Sequence[Compiled], pairs: Sequence[tuple[str, str]]) -> Iterator[bytes]:
    """Yield the line of each message."""
    for message, metadata in pairs:
        result: str | None = message
        try:
            for function in chain:
                if result is not None:
                    arm()
                    result = function(result, metadata)
        except Exception as error:
            try:
                # The function may have been interrupted anywhere, or have used up its heap.
                function.renew()
                yield failure(error)
            except Exception as again:
                yield failure(again)
        else:
            yield b"null\n" if result is None else result.rstrip("\n").encode() + b"\n"


def failure(error: Exception) -> bytes:
    """Return the line of an error: what a function threw, or which limit it met."""
    words = str(error).partition("\n")[0] or type(error).__name__
    called, parsed = CALLED.search(str(error)), PARSED.search(str(error))
    if words == "InternalError: interrupted":
        words = f"The function took longer than {CALL_SECONDS * 1000:.0f} ms."
    elif words == "InternalError: out of memory" or isinstance(error, MemoryError):
        words = f"The function needs more than {HEAP_BYTES // 1024 // 1024} MB of memory."
    elif called is not None and called[1] != OURS:
        words = f"{words} (line {called[2]})"
    elif called is None and parsed is not None:
        words = f"{words} (line {parsed[1]})"
    return b"!" + json.dumps(words[:ERROR_CHARACTERS]).encode() + b"\n"


def arm() -> None:
    """Let the kernel end this process unless another call or `disarm` follows soon."""
    signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS)


def disarm() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
