"""The load: messages with numbers, which a peer's publishing program publishes, and the sink that they arrive at."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench.processes import BenchError, wait_until
from bench.sink import Sinks

#: The calls that are on their way at once, and the most messages that have been published and not arrived yet.
MOST_CALLS, MOST_WAITING = 32, 2_000
#: How long a peer may take for what is on its way.
LAST_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Phase:
    """What was published in a phase: messages of these numbers, each at the time when it was due."""

    first: int
    due_ns: tuple[int, ...]

    def latencies_ms(self, arrivals: Mapping[str, int]) -> list[float]:
        """Return the times from publish to arrival, the shortest first."""
        return sorted((arrivals[str(self.first + n)] - due) / 1e6 for n, due in enumerate(self.due_ns))

    def rate(self, arrivals: Mapping[str, int]) -> float:
        """Return the messages a second from the first publish to the last arrival."""
        last = max(arrivals[str(self.first + n)] for n in range(len(self.due_ns)))
        return len(self.due_ns) * 1e9 / (last - self.due_ns[0])


class Load:
    """Sends lines to a publishing program (programs/lines.py), and reads its answers in a thread."""

    def __init__(self, program: subprocess.Popen[str], sink: Sinks) -> None:
        assert program.stdin is not None and program.stdout is not None
        self._program, self._lines, self._answers = program, program.stdin, program.stdout
        self._sink = sink
        self._answered = self._calls = self.sent = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for _ in self._answers:
            self._answered += 1

    def publish_as_fast_as_possible(self, *, seconds: float, a_call: int) -> Phase:
        """Publish while less than MOST_CALLS and MOST_WAITING are on their way; return once all have arrived."""
        first, due = self.sent, []
        ends = time.monotonic() + seconds
        most_calls = min(MOST_CALLS, MOST_WAITING // 4 // a_call)
        while time.monotonic() < ends:
            if self._calls - self._answered >= most_calls or self.sent - self._sink.messages() >= MOST_WAITING:
                self._check()
                time.sleep(0.0005)
                continue
            due += [time.monotonic_ns()] * a_call
            self._send(a_call)
        return self._finish(first, due)

    def publish_steadily(self, *, seconds: float, rate: int) -> Phase:
        """Publish single messages at a rate, whatever becomes of them; return once all have arrived."""
        first, due = self.sent, []
        began = time.monotonic_ns() + 10_000_000
        for number in range(round(seconds * rate)):
            due.append(began + number * 1_000_000_000 // rate)
            time.sleep(max(due[-1] - time.monotonic_ns(), 0) / 1e9)
            self._send(1)
        return self._finish(first, due)

    def _send(self, count: int) -> None:
        self._lines.write(f"{self.sent} {count}\n")
        self._lines.flush()
        self.sent += count
        self._calls += 1

    def _finish(self, first: int, due: list[int]) -> Phase:
        # A message may arrive before its publish is answered, and twice.
        wait_until(self._has_all, seconds=LAST_SECONDS, what=f"the last of {self.sent:,} messages", every=0.01)
        return Phase(first, tuple(due))

    def _has_all(self) -> bool:
        self._check()
        return self._answered >= self._calls and self._sink.messages() >= self.sent

    def _check(self) -> None:
        if self._program.poll() is not None:
            raise BenchError("the publishing program has ended")
