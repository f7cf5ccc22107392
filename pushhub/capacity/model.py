"""The capacity model: each part's cost is linear in what a load has each second (docs/scale.md#the-model).

`python -m bench.capacity` measures the costs and writes costs.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("costs.json")
#: The share of its cores that a part may use, so that it outlives a lost machine and catches up after an outage.
UTILISATION = 0.6
#: The cores that one PostgreSQL is trusted to use; all others are processes of one core. No run has checked it.
POSTGRESQL_CORES = 16
#: The outstanding requests of one push worker: the default of PUSHHUB_WORKER_OUTSTANDING.
WORKER_OUTSTANDING = 40_000
#: PostgreSQL's pages, which a checkpoint writes; each byte of the write-ahead log is taken to dirty one of its own.
PAGE_BYTES = 8192
#: The parts whose CPU is measured, and the least number of processes of each.
PARTS = {"web": 2, "push": 2, "maintenance": 2, "redis": 1, "postgresql": 1}


@dataclass(frozen=True, slots=True)
class Load:
    """A steady load: messages a second, deliveries of each, bytes of its data, and how long messages are kept.

    Messages are kept in the database while they wait for an endpoint that is down, or as the topic retains them.
    """

    rate: float
    fanout: float = 1
    size: int = 1000
    batch: int = 1
    kept_seconds: float = 3600
    latency_ms: float = 100

    def outstanding(self) -> float:
        """Return how many requests endpoints of this latency have at a time."""
        return self.rate * self.fanout * self.latency_ms / 1000

    def per_second(self) -> dict[str, float]:
        """Return how much there is each second of what the costs are for."""
        kilobytes = self.rate * self.size / 1000
        return {
            "request": self.rate / self.batch,
            "message": self.rate,
            "delivery": self.rate * self.fanout,
            "published_kb": kilobytes,
            "delivered_kb": kilobytes * self.fanout,
        }


def read_costs() -> dict[str, Any]:
    costs: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
    return costs


def spent(costs: Mapping[str, float], load: Load) -> float:
    """Return what a load costs in a second, in the unit of the costs."""
    return sum(costs[unit] * count for unit, count in load.per_second().items())


def plan(load: Load, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a load needs, as `pushhub capacity --format=json` prints it."""
    costs, stored = measured["costs"], measured["stored_bytes"]
    cores = {part: spent(costs[f"{part}_us"], load) / 1e6 for part in PARTS}
    parts = {part: _need(part, cores[part], load) for part in PARTS}
    wal = spent(costs["wal_bytes"], load)
    kept = load.rate * load.kept_seconds * (stored["message"] + load.size + stored["delivery"] * load.fanout)
    return {
        "deliveriesPerSecond": load.rate * load.fanout,
        "parts": parts,
        "cores": ceil(sum(cores.values()) / UTILISATION),
        "outstandingRequests": round(load.outstanding()),
        "postgresql": {
            "storedBytes": round(kept),
            "writeAheadLogBytesPerSecond": round(wal),
            "writesPerSecond": round(spent(costs["wal_flushes"], load) + wal / PAGE_BYTES),
        },
        "network": {
            f"{name}BitsPerSecond": round(8 * spent(costs[f"{name}_bytes"], load)) for name in ("http", "redis")
        },
        # A deployment has one PostgreSQL. Several Redis are a Cluster.
        "deployments": parts["postgresql"]["processes"],
    }


def _need(part: str, cores: float, load: Load) -> dict[str, Any]:
    """Return the processes with room, the cores that they use, and the messages a second that one can take."""
    room = UTILISATION * (POSTGRESQL_CORES if part == "postgresql" else 1)
    held = load.outstanding() / WORKER_OUTSTANDING if part == "push" else 0
    processes = max(PARTS[part], ceil(cores / room), ceil(held))
    return {"processes": processes, "cores": round(cores, 3), "oneIsEnoughFor": round(load.rate * room / cores)}
