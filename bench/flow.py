"""The flow control with a real push worker: endpoints with hard limits, and an endpoint with random nacks.

The endpoints are those of `bench.simulate`, on loopback. The shares are acks per second divided by the endpoint's
capacity (places / delay). With random nacks they are divided by the rate of the same endpoint without nacks, which the
row measures first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.limited import limited
from bench.processes import say, wait_until
from bench.stand import Row, stand
from tests.ports import free_port

#: The endpoint with random nacks gets at most this many requests at a time.
CAP = 30
CAP_ATTRIBUTE = "x-pushhub-max-outstanding"
#: More concurrent requests than a lane ever has.
NO_LIMIT = 30_000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A kind of endpoint, and how many messages it can take per second."""

    places: int
    delay_seconds: float
    nacked: float = 0.0
    cap: int = 0

    @property
    def capacity(self) -> float:
        return (self.cap or self.places) / self.delay_seconds


@dataclass(frozen=True, slots=True)
class Result:
    """What the endpoint saw per second while it was measured, and the share of nacks in percent."""

    acks_per_second: float
    nacks_percent: float


LIMITS = {10: Endpoint(10, 0.05), 100: Endpoint(100, 0.05), 1000: Endpoint(1000, 0.2)}
HEALTHY = Endpoint(NO_LIMIT, 0.01, cap=CAP)
FLAKY = Endpoint(NO_LIMIT, 0.01, nacked=0.05, cap=CAP)


def flow(quick: bool) -> Row:
    # The goals leave the flow control 30 s to settle.
    settle_seconds, measured_seconds = (0.2, 0.4) if quick else (25, 10)
    row: Row = {}
    for places, endpoint in LIMITS.items():
        result = _measure(endpoint, settle_seconds, measured_seconds)
        row[f"limit_{places}_share"] = round(result.acks_per_second / endpoint.capacity, 3)
        row[f"limit_{places}_nacks_percent"] = result.nacks_percent
    healthy = _measure(HEALTHY, settle_seconds, measured_seconds)
    flaky = _measure(FLAKY, settle_seconds, measured_seconds)
    row["nacks_0_percent_per_second"] = round(healthy.acks_per_second)
    row["nacks_5_percent_share"] = round(flaky.acks_per_second / healthy.acks_per_second, 3)
    say(f"  flow control: {row}")
    return row


def _measure(endpoint: Endpoint, settle_seconds: float, measured_seconds: float) -> Result:
    """Push from a full backlog, and count the answers once the flow control has settled."""
    # A new worker needs a moment; the backlog must not run dry before the end.
    count = int(endpoint.capacity * (settle_seconds + measured_seconds) * 1.1) + 1000
    with (
        stand() as deployment,
        limited(
            deployment.folder,
            port=free_port(),
            places=endpoint.places,
            delay_seconds=endpoint.delay_seconds,
            nacked=endpoint.nacked,
        ) as server,
    ):
        attributes = {"attributes": {CAP_ATTRIBUTE: str(endpoint.cap)}} if endpoint.cap else {}
        deployment.subscribe(server.url, push=attributes)
        deployment.publish(count)
        with deployment.worker():
            wait_until(lambda: server.counts().acked, seconds=60, what="the first ack")
            time.sleep(settle_seconds)
            first, began = server.counts(), time.monotonic()
            time.sleep(measured_seconds)
            last, seconds = server.counts(), time.monotonic() - began
    acked, nacked = last.acked - first.acked, last.nacked - first.nacked
    rate, nacks_percent = acked / seconds, round(100 * nacked / max(acked + nacked, 1), 2)
    say(f"  {endpoint}: {rate:,.0f} acks/s of {endpoint.capacity:,.0f}, {nacks_percent} % nacks")
    return Result(rate, nacks_percent)
