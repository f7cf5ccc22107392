"""Measures one peer: the peer, its publisher, its Redis and the sink on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.message import ATTRIBUTES, HELLO
from bench.peers.load import Load, Phase
from bench.peers.peers import Peer
from bench.processes import ROOT, BenchError, clean_environment, family, process, pss_mb, say, used_seconds
from bench.sink import sinks
from deliveries.rules.envelope import push_body
from deliveries.rules.payload import publish_time_text, wire_message
from tests.ports import free_port
from tests.redisserver import RedisServer

#: The requests that a peer may have outstanding.
CONCURRENCY = 32
BATCH = 100
#: Messages a second of the steady phases.
RATES = (100, 500)
#: The number in the body, which SNS has as text in text.
NUMBER = r'"number\\?":\\?"(\d+)'
#: A message id with as many digits as current ids have, and a token as long as PushHub's.
MESSAGE_ID, TOKEN = 911_742_875_595_837_440, "x" * 760
SETTLE_SECONDS = 3

Figures = dict[str, Any]


def measure(name: str, peer: Peer, command: list[str], *, quick: bool) -> Figures:
    """Return the figures of a peer that is installed. Raises BenchError if a message was lost, or it didn't start."""
    seconds, settle = (0.5, 0.0) if quick else (5.0, SETTLE_SECONDS)
    rates = (100,) if quick else RATES
    figures: Figures = {}
    phases: dict[str, Phase] = {}
    with tempfile.TemporaryDirectory(prefix=f"pushhub-peer-{name}-") as text:
        folder = Path(text)
        with sinks(folder, port=free_port(), delay_seconds=0, names=NUMBER) as sink, ExitStack() as stack:
            pids = []
            if peer.needs_redis:
                (folder / "redis").mkdir()
                pids.append(stack.enter_context(RedisServer(folder / "redis")).pid)
            env = _environment(folder, sink.url, peer)
            pids.append(stack.enter_context(process([*command, "start"], env=env)).pid)
            program = stack.enter_context(_publisher([*command, "publish"], env))
            load = Load(program, sink)

            def used() -> float:
                return used_seconds(*_families(pids), program.pid)

            load.publish_as_fast_as_possible(seconds=0.05, a_call=1)
            time.sleep(settle)
            figures["idle_pss_mb"] = _memory(pids)
            load.publish_as_fast_as_possible(seconds=seconds / 4, a_call=1)
            phases["batches"] = load.publish_as_fast_as_possible(seconds=seconds, a_call=BATCH)
            phases["single"] = load.publish_as_fast_as_possible(seconds=seconds, a_call=1)
            for rate in rates:
                time.sleep(settle)
                before, own = used(), used_seconds(program.pid)
                phases[str(rate)] = phase = load.publish_steadily(seconds=seconds, rate=rate)
                scale = 1e6 / len(phase.due_ns)
                figures[f"cpu_us_a_message_at_{rate}"] = round((used() - before) * scale)
                figures[f"publisher_cpu_us_a_message_at_{rate}"] = round((used_seconds(program.pid) - own) * scale)
            figures["pss_mb"] = _memory(pids)
            count = load.sent
        arrivals = sink.arrivals()
        figures |= {"messages": count, "repeats": sink.received() - len(arrivals)}
    if missing := count - len(arrivals):
        raise BenchError(f"{missing} of {count} messages never arrived")
    for kind in ("batches", "single"):
        figures[f"{kind}_per_second"] = round(phases[kind].rate(arrivals))
    for rate in rates:
        hundredths = statistics.quantiles(phases[str(rate)].latencies_ms(arrivals), n=100)
        figures[f"at_{rate}_per_second"] = round(phases[str(rate)].rate(arrivals), 1)
        figures |= {f"at_{rate}_ms_p{percent}": round(hundredths[percent - 1], 2) for percent in (50, 99)}
    say(f"  {figures['batches_per_second']:,} deliveries/s in batches, {figures['single_per_second']:,} one a call")
    return figures


def _environment(folder: Path, url: str, peer: Peer) -> dict[str, str]:
    attributes = ATTRIBUTES | {"number": "@"}
    message = wire_message(MESSAGE_ID, HELLO, attributes, "", publish_time=publish_time_text(MESSAGE_ID))
    return clean_environment() | {
        "PEER_URL": url,
        "PEER_REDIS": str(folder / "redis" / "redis.sock"),
        "PEER_PORT": str(free_port()),
        "PEER_CONCURRENCY": str(CONCURRENCY),
        "PEER_BODY": push_body(message, subscription="projects/bench/subscriptions/bench").decode(),
        "PEER_AUTHORIZATION": f"Bearer {TOKEN}",
        "PUSHHUB_DATA": str(folder / "pushhub"),
        **peer.environment,
    }


@contextmanager
def _publisher(command: list[str], env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate(timeout=10)


def _families(pids: list[int]) -> list[int]:
    return [member for pid in pids for member in family(pid)]


def _memory(pids: list[int]) -> int:
    return round(sum(pss_mb(pid) for pid in _families(pids)))
