"""The command line of `pushhub capacity`."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pushhub.capacity.model import UTILISATION, Load, plan, read_costs
from pushhub.common.parser import Parser
from subscriptions.cli.values import seconds

EPILOG = "The figures are those of the machine that measured the costs; docs/scale.md says how, and what was checked."


def parser() -> Parser:
    options = Parser(prog="pushhub capacity", description="What a load of messages needs.", epilog=EPILOG)
    add = options.add_argument
    add("--rate", type=_number(1e-3, 1e9), required=True, help="messages published a second")
    add("--fanout", type=_number(0, 1e6), default=1, help="subscriptions that get each message (default 1)")
    add("--size", type=_number(0, 10_000_000), default=1000, help="bytes of a message's data (default 1000)")
    add("--batch", type=_number(1, 1000), default=1, help="messages in a publish request (default 1)")
    add("--kept", type=seconds, default=3600, help="how long messages wait or are retained at most (default 1h)")
    add("--latency-ms", type=_number(0, 600_000), default=100, help="what endpoints take to answer (default 100)")
    add("--format", choices=["text", "json"], default="text", help="what is printed (default text)")
    return options


def main(arguments: Sequence[str]) -> int:
    """Print what a load needs; return the exit status."""
    options = parser().parse_args(arguments)
    load = Load(options.rate, options.fanout, options.size, options.batch, options.kept, options.latency_ms)
    measured = read_costs()
    needs = {"measured": {name: measured[name] for name in ("cpu", "at", "commit")}, **plan(load, measured)}
    text = json.dumps(needs, indent=2) if options.format == "json" else "\n".join(_lines(load, needs))
    sys.stdout.write(text + "\n")
    return 0


def _number(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ArgumentTypeError(f"{text!r}: give a number from {least:,g} to {most:,.0f}")
        return value

    return number


def _lines(load: Load, needs: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{load.rate:,g} messages/s of {load.size:,g} bytes, {load.batch:g} in a request, to {load.fanout:,g} "
        f"subscription{'' if load.fanout == 1 else 's'} each: {needs['deliveriesPerSecond']:,g} deliveries/s"
    )
    yield f"{'part':<12} {'processes':>9} {'cores used':>11} {'one is enough for':>20}"
    for part, need in needs["parts"].items():
        enough = f"{need['oneIsEnoughFor']:,}/s"
        yield f"{part:<12} {need['processes']:>9,} {need['cores']:>11,.2f} {enough:>20}"
    database, network = needs["postgresql"], needs["network"]
    is_cluster = needs["parts"]["redis"]["processes"] > needs["deployments"]
    redis = "a Redis Cluster" if is_cluster else "one Redis"
    rows = {
        "cores": f"{needs['cores']:,} in all, of which {UTILISATION:.0%} are used",
        "PostgreSQL": f"{_scaled(database['storedBytes'], 'B')} stored, {database['writesPerSecond']:,} writes/s, "
        f"{_scaled(database['writeAheadLogBytesPerSecond'], 'B')}/s of write-ahead log",
        "network": f"{_scaled(network['httpBitsPerSecond'], 'bit')}/s of HTTP, "
        f"{_scaled(network['redisBitsPerSecond'], 'bit')}/s of Redis",
        "endpoints": f"{needs['outstandingRequests']:,} requests at a time",
        "deployments": f"{needs['deployments']:,}, each with one PostgreSQL and {redis}",
    }
    yield from (f"{name:<12} {text}" for name, text in rows.items())
    yield "costs        measured on {cpu} at {at}, commit {commit}".format(**needs["measured"])


def _scaled(value: float, unit: str) -> str:
    """Return a number with the prefix of its size: `1.2 GB`."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 1000 or prefix == "P":
            break
        value /= 1000
    return f"{value:,.3g} {prefix}{unit}"
