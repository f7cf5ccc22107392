"""Measures two regions with a Redis each, of which the far one is 80 ms from the database: `python -m bench.regions`.

A proxy delays each piece of data by 40 ms in each direction. Publishes of one message go to the web server of each
region. Then the far region is cut off, and later reached again. The figures go to bench/results/regions.json, from
which `python -m bench.scale` writes docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from bench import machine
from bench.__main__ import prepare_django
from bench.message import Publisher
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, nginx, wait_until
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.regions import Region

RESULTS = ROOT / "bench" / "results" / "regions.json"
#: Half of a round trip between the far region and the database.
DELAY_SECONDS = 0.04
#: Publishes a second in each region, over so many connections.
RATE, CONNECTIONS = 50, 64
WAIT_SECONDS = 180


def measure(seconds: int) -> dict[str, Any]:
    """Return the figures of both regions, and the seconds of a take-over and of a return."""
    from bench.stand import stand
    from deliveries.models import Delivery, RegionHold
    from tests.regions import Regions

    def holder() -> str:
        return str(RegionHold.objects.values_list("holder", flat=True).get(region="far"))

    with nginx(free_port()) as endpoint, stand() as deployment:
        os.environ.update(deployment.env | {"PUSHHUB_LOG_LEVEL": "INFO"})
        deployment.subscribe(endpoint.url)
        with Regions(delay_seconds=DELAY_SECONDS) as regions:
            wait_until(lambda: RegionHold.objects.count() == 2, seconds=60, what="the holds")
            figures: dict[str, Any] = {}
            for region in (regions.near, regions.far):
                received = endpoint.received()
                figures[region.name] = _publish(region, seconds)
                _wait(lambda: not Delivery.objects.exists(), what="the acks")
                if endpoint.received() - received < figures[region.name]["published"]:
                    raise BenchError(f"messages of {region.name} were lost")
            Publisher(regions.far.web.address[1], 100).publish()
            regions.network.cut()
            began = time.monotonic()
            _wait(lambda: holder() == "near", what="the take-over")
            figures["cut off, until it is taken over, s"] = round(time.monotonic() - began, 1)
            _wait(lambda: not Delivery.objects.exists(), what="the acks of the near region")
            figures["cut off, until the near one has pushed its messages, s"] = round(time.monotonic() - began, 1)
            regions.network.mend()
            began = time.monotonic()
            _wait(lambda: holder() == "far", what="the return")
            received = endpoint.received()
            Publisher(regions.far.web.address[1], 1).publish()
            _wait(lambda: endpoint.received() > received, what="a push of the far region")
            figures["reached again, until it pushes, s"] = round(time.monotonic() - began, 1)
            return figures


def _publish(region: Region, seconds: int) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("r") as notes:
        words = map(str, (region.web.address[1], RATE, seconds, CONNECTIONS, notes.name))
        subprocess.run([sys.executable, "-m", "bench.publisher", *words], cwd=ROOT, check=True, timeout=seconds + 60)
        waits = [(int(answered) - int(due)) / 1e6 for _, due, answered in (line.split() for line in notes)]
    cuts = quantiles(waits, n=100)
    return {"published": len(waits), "p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


def _wait(condition: Callable[[], bool], *, what: str) -> None:
    wait_until(condition, seconds=WAIT_SECONDS, what=what, every=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.regions", description=__doc__)
    parser.add_argument("--seconds", type=int, default=20, help="how long each region publishes")
    arguments = parser.parse_args()
    at = machine.moment()["at"]
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        Path(folder).chmod(0o755)
        prepare_django(folder, on_postgresql=True)
        figures = measure(arguments.seconds)
    print(json.dumps(figures, indent=1))
    RESULTS.write_text(json.dumps({"at": at, "rate": RATE, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
