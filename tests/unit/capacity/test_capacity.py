"""`pushhub capacity`: the model is linear in the load, and the command says what is needed or names what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.conf import settings

from pushhub.capacity.command import main
from pushhub.capacity.model import PARTS, UTILISATION, WORKER_OUTSTANDING, Load, plan, read_costs

UNITS = ("request", "message", "delivery", "published_kb", "delivered_kb")
COSTS = {**dict.fromkeys((f"{part}_us" for part in PARTS), 1), "push_us": 100, "redis_us": 20, "postgresql_us": 30}


def measured(**costs: float) -> dict[str, Any]:
    """Return costs of each part for a delivery, and of nothing else."""
    flows = dict.fromkeys(("http_bytes", "redis_bytes", "wal_bytes", "wal_flushes"), 100)
    each = {**COSTS, **flows, **costs}
    return {
        "costs": {part: {**dict.fromkeys(UNITS, 0), "delivery": cost} for part, cost in each.items()},
        "stored_bytes": {"message": 100, "delivery": 200},
    }


def test_a_part_has_room_for_what_it_computes() -> None:
    needs = plan(Load(18_000), measured())
    assert needs["parts"]["push"] == {"processes": 3, "cores": 1.8, "oneIsEnoughFor": UTILISATION * 10_000}
    assert needs["parts"]["redis"]["processes"] == 1
    assert needs["cores"] == 5  # 18,000 deliveries of 152 µs are 2.7 cores


def test_twice_the_load_needs_twice_as_much() -> None:
    once, twice = (plan(Load(rate, fanout=2), measured()) for rate in (50_000, 100_000))
    assert twice["postgresql"]["storedBytes"] == 2 * once["postgresql"]["storedBytes"]
    assert twice["network"]["httpBitsPerSecond"] == 2 * once["network"]["httpBitsPerSecond"]
    assert twice["parts"]["push"]["cores"] == 2 * once["parts"]["push"]["cores"]
    assert twice["parts"]["redis"]["oneIsEnoughFor"] == once["parts"]["redis"]["oneIsEnoughFor"]


def test_slow_endpoints_need_workers_that_hold_their_requests() -> None:
    needs = plan(Load(1_000, latency_ms=100_000), measured())
    assert needs["outstandingRequests"] == 100_000
    assert needs["parts"]["push"]["processes"] == 3


def test_several_deployments_share_what_one_postgresql_cannot_take() -> None:
    assert plan(Load(100_000), measured(postgresql_us=400))["deployments"] == 5


@pytest.mark.parametrize(("rate", "redis"), [("1000", "one Redis"), ("1000000", "a Redis Cluster")])
def test_several_redis_are_a_cluster(rate: str, redis: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--rate={rate}"]) == 0
    assert f"each with one PostgreSQL and {redis}\n" in capsys.readouterr().out


def test_messages_are_stored_for_as_long_as_they_are_kept() -> None:
    needs = plan(Load(10, fanout=3, size=1000, kept_seconds=60), measured())
    assert needs["postgresql"]["storedBytes"] == 10 * 60 * (100 + 1000 + 3 * 200)


@pytest.mark.parametrize("load", [Load(0.001), Load(1e9, fanout=1e6, size=10_000_000), Load(1, size=0, latency_ms=0)])
def test_the_costs_that_were_measured_serve_for_each_load(load: Load) -> None:
    costs = read_costs()
    assert all(set(costs["costs"][f"{part}_us"]) == set(UNITS) for part in PARTS)
    assert all(need["processes"] >= PARTS[part] for part, need in plan(load, costs)["parts"].items())


def test_json_has_the_plan_and_what_it_was_measured_on(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rate=5000", "--fanout=2", "--size=400", "--batch=100", "--kept=1d", "--latency-ms=20", "--format=json"]
    assert main(words) == 0
    costs = read_costs()
    load = Load(5000, fanout=2, size=400, batch=100, kept_seconds=86400, latency_ms=20)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"measured": {name: costs[name] for name in ("cpu", "at", "commit")}, **plan(load, costs)}


def test_text_has_a_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rate=5000"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == ("5,000 messages/s of 1,000 bytes, 1 in a request, to 1 subscription each: 5,000 deliveries/s")
    assert [line.split()[0] for line in lines] == [
        "part", *PARTS, "cores", "PostgreSQL", "network", "endpoints", "deployments", "costs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: --rate"),
        (["--rate=0"], "argument --rate: '0': give a number from 0.001 to 1,000,000,000"),
        (["--rate=many"], "argument --rate: 'many': give a number from 0.001 to 1,000,000,000"),
        (["--rate=nan"], "argument --rate: 'nan': give a number from 0.001 to 1,000,000,000"),
        (["--rate=1", "--batch=1001"], "argument --batch: '1001': give a number from 1 to 1,000"),
        (["--rate=1", "--size=1e8"], "argument --size: '1e8': give a number from 0 to 10,000,000"),
        (["--rate=1", "--kept=soon"], "argument --kept: 'soon': give a number and one of s, m, h, d"),
        (["--rate=1", "--format=xml"], "argument --format: unknown word 'xml': choose from text, json"),
    ],
)
def test_a_mistake_is_one_line_and_exits_with_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith(f"pushhub capacity: {said}")
    assert printed.err.count("\n") == 1


def test_a_worker_holds_as_many_requests_as_its_setting_says() -> None:
    assert WORKER_OUTSTANDING == settings.WORKER_OUTSTANDING
