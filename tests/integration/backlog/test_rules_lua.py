"""rules.lua and its Python twins agree, number by number, over random histories on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

import deliveries.backlog
from deliveries.backlog.codes import RULE_CODES, STATE_CODES, lua_names
from deliveries.backlog.lanestate import lane_state_parse
from deliveries.rules import flow as rules
from deliveries.rules.backoff import TOP_LEVEL, Backoff
from deliveries.rules.bucket import Bucket
from deliveries.rules.flow import Flow
from deliveries.rules.retry import countdown_ms
from deliveries.rules.share import MEMORY as SHARE_MEMORY
from deliveries.rules.share import PRIOR, Share, gap_ms
from deliveries.rules.window import MEMORY, Base, Phase, Round, Window

RULES = (Path(deliveries.backlog.__file__).parent / "rules.lua").read_text(encoding="utf-8")

# Plays a history on a state. After each step it reports the state and the answers to four questions, with all digits.
PLAYER = """
local function exact(value) return string.format('%.17g', value) end
local state, told = cjson.decode(ARGV[1]), {}
for _, step in ipairs(cjson.decode(ARGV[2])) do
  if step.kind == 'result' then
    rules_result(state, step.acked, step.latency_ms, step.now_ms, step.dice, step.repeated)
  elseif step.kind == 'restart' then
    rules_restart(state, step.now_ms)
  else
    state.outstanding = step.outstanding
    rules_spend(state, step.now_ms, step.count)
  end
  state.outstanding = step.outstanding
  -- The questions refill the bucket on the way, so they are put to a copy.
  local asked = {}
  for name, value in pairs(state) do asked[name] = value end
  local answer = {exact(rules_window(asked)), exact(rules_free(asked, step.now_ms))}
  answer[3] = exact(rules_bucket_wait(asked, step.now_ms) or -1)
  answer[4] = exact(rules_pause(asked, step.now_ms))
  for _, name in ipairs(RULE_FIELDS) do answer[#answer + 1] = exact(state[name]) end
  told[#told + 1] = answer
end
local fresh = {}
for _, name in ipairs(RULE_FIELDS) do fresh[#fresh + 1] = exact(rules_new()[name]) end
return {fresh, told}
"""

NOW_MS = 1_790_000_000_000


@dataclass(frozen=True)
class Step:
    """An event of a lane, and how many messages are outstanding after it."""

    kind: str
    now_ms: int
    outstanding: int
    acked: bool = True
    latency_ms: float = 0.0
    dice: float = 0.0
    repeated: bool = False
    count: int = 0


def fields(flow: Flow) -> dict[str, float]:
    """Return the fields of a flow by the names of rules.lua, in the order of its RULE_FIELDS."""
    window, backoff, bucket = flow.window, flow.backoff, flow.bucket
    round_, base, share = window.round, window.base, window.share
    return {
        "window": window.size,
        "ack_ratio": window.ack_ratio,
        "latency_ms": window.latency_ms,
        "results_seen": window.seen,
        "nack_share": share.nacks,
        "nack_share_seen": share.seen,
        "gap_ms": share.gap_ms,
        "phase": float(round_.phase),
        "round_began_ms": round_.began_ms,
        "round_size": round_.size,
        "round_results": round_.results,
        "round_nacks": round_.nacks,
        "round_latency_ms": round_.latency_ms,
        "round_peak": round_.peak,
        "base_size": base.size,
        "base_results": base.results,
        "base_nacks": base.nacks,
        "base_latency_ms": base.latency_ms,
        "step": window.step,
        "turn": window.turn,
        "backoff_level": backoff.level,
        "backoff_since_ms": backoff.since_ms,
        "resume_ms": backoff.resume_ms,
        "bucket_tokens": bucket.tokens,
        "bucket_filled_ms": bucket.filled_ms,
        "cap": flow.cap,
        "rate": flow.rate,
        "burst": flow.burst,
    }


def played(flow: Flow, steps: list[Step]) -> list[list[float]]:
    """Return what PLAYER reports, by the Python rules."""
    told = []
    for step in steps:
        if step.kind == "result":
            flow = rules.result(
                flow,
                acked=step.acked,
                latency_ms=step.latency_ms,
                now_ms=step.now_ms,
                dice=step.dice,
                repeated=step.repeated,
            )
        elif step.kind == "restart":
            flow = rules.restarted(flow, now_ms=step.now_ms)
        else:
            flow = rules.sent(flow, count=step.count, outstanding=step.outstanding, now_ms=step.now_ms)
        wait_ms = rules.bucket_wait_ms(flow, now_ms=step.now_ms)
        free = rules.free(flow, outstanding=step.outstanding, now_ms=step.now_ms)
        pause_ms = rules.pause_ms(flow, now_ms=step.now_ms)
        told.append([rules.tokens(flow), free, -1 if wait_ms is None else wait_ms, pause_ms, *fields(flow).values()])
    return told


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


def counts(high: int) -> st.SearchStrategy[float]:
    return st.integers(0, high).map(float)


sizes = st.sampled_from([1.0, 3.0, 99.5, 2999.5, 3000.0, 12345.5, 29999.999]) | counts(60).map(lambda size: size + 1)
latencies = numbers(0, 600_000) | numbers(900, 1100) | numbers(10, 20)
shares = st.builds(
    lambda nacks, seen: Share(nacks, seen, gap_ms(nacks)),
    numbers(0, 1) | numbers(0.02, 0.25),
    st.integers(int(PRIOR), int(SHARE_MEMORY)).map(float),
)


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Draw a round at any moment, often shortly before its end."""
    size, results = draw(sizes), draw(counts(70) | counts(30_000))
    nacks = min(draw(counts(30)), results)
    peak = draw(st.sampled_from([0.0, 1.0, 49.0, 50.0, size]) | counts(30_000))
    latency_ms = (results - nacks) * draw(latencies)
    return Round(draw(st.sampled_from(Phase)), NOW_MS - draw(counts(2000)), size, results, nacks, latency_ms, peak)


bases = st.builds(Base, size=sizes, results=counts(70), nacks=counts(5), latency_ms=st.just(0.0) | latencies)
windows = st.builds(
    Window,
    size=sizes | numbers(1, 30_000),
    ack_ratio=numbers(0, 1) | numbers(0.98, 1),
    latency_ms=latencies,
    seen=st.integers(1, int(MEMORY)).map(float),
    round=rounds(),
    base=bases,
    step=counts(3000),
    turn=counts(2),
    share=shares,
)
backoffs = st.builds(
    Backoff,
    level=numbers(0, TOP_LEVEL) | st.sampled_from([0.0, 3.0]),
    since_ms=numbers(NOW_MS - 1000, NOW_MS + 1000),
    resume_ms=numbers(NOW_MS - 1000, NOW_MS + 1000),
)
flows = st.builds(
    Flow,
    window=windows | st.just(Window()),
    backoff=backoffs | st.just(Backoff()),
    bucket=st.builds(Bucket, tokens=numbers(0, 1000), filled_ms=numbers(NOW_MS - 5000, NOW_MS + 10))
    | st.just(Bucket()),
    cap=st.sampled_from([0.0, 1.0, 250.0]),
    rate=st.just(0.0) | numbers(0.01, 10_000),
    burst=st.just(0.0) | numbers(0.5, 1000),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Draw results, some from before a pause, sends and restarts; times mostly increase and sometimes step back."""
    now_ms, steps = NOW_MS, []
    mostly_acks = draw(st.booleans())
    for _ in range(draw(st.integers(1, 60))):
        now_ms += draw(st.sampled_from([-50, 0, 5]) | st.integers(0, 200) | st.integers(0, 70_000))
        outstanding = draw(st.integers(0, 30_000))
        if draw(st.integers(0, 4)) == 0:
            steps.append(Step("sent", now_ms, outstanding, count=draw(st.integers(1, 500))))
            continue
        if draw(st.integers(0, 19)) == 0:
            steps.append(Step("restart", now_ms, outstanding))
            continue
        acked = draw(st.integers(0, 9)) > 0 if mostly_acks else draw(st.booleans())
        latency_ms = draw(numbers(0, 50) | numbers(0, 20_000))
        dice = draw(st.floats(0, 1, exclude_max=True, allow_subnormal=False))
        steps.append(
            Step("result", now_ms, outstanding, acked, latency_ms, dice, repeated=draw(st.integers(0, 9)) == 0)
        )
    return steps


@pytest.fixture(scope="module")
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server) as connected:
        yield connected


def on_redis(client: redis.Redis, flow: Flow, steps: list[Step]) -> tuple[list[float], list[list[float]]]:
    script = client.register_script(lua_names() + RULES + PLAYER)
    reply: Any = script(args=[json.dumps(fields(flow)), json.dumps([vars(step) for step in steps])])
    fresh, told = reply
    return [float(value) for value in fresh], [[float(value) for value in answer] for answer in told]


@settings(max_examples=150)
@given(flow=flows, steps=histories())
def test_lua_and_python_agree_on_every_step(client: redis.Redis, flow: Flow, steps: list[Step]) -> None:
    _, told = on_redis(client, flow, steps)

    for step, lua, python in zip(steps, told, played(flow, steps), strict=True):
        assert lua == pytest.approx(python, rel=1e-9, abs=1e-9), step


@settings(max_examples=50)
@given(flow=flows)
def test_a_lane_state_is_read_back_by_the_names_of_its_fields(flow: Flow) -> None:
    held = {RULE_CODES[name].encode(): repr(value).encode() for name, value in fields(flow).items()}
    state = lane_state_parse({STATE_CODES["mode"].encode(): b"1", **held})
    assert state is not None
    assert state.flow == flow


@settings(max_examples=150)
@given(
    attempt=st.integers(1, 60),
    minimum_ms=st.sampled_from([0.0, 100.0, 10_000.0]) | numbers(0, 700_000),
    maximum_ms=st.sampled_from([0.0, 100.0, 600_000.0]) | numbers(0, 700_000),
    dice=st.floats(0, 1, exclude_max=True, allow_subnormal=False),
)
def test_lua_and_python_agree_on_the_countdown(
    client: redis.Redis, attempt: int, minimum_ms: float, maximum_ms: float, dice: float
) -> None:
    ask = "\nreturn string.format('%.17g', rules_countdown(unpack(cjson.decode(ARGV[1]))))"
    reply: Any = client.eval(lua_names() + RULES + ask, 0, json.dumps([attempt, minimum_ms, maximum_ms, dice]))
    assert float(reply) == countdown_ms(attempt, minimum_ms=minimum_ms, maximum_ms=maximum_ms, dice=dice)


def test_every_field_of_a_state_has_a_code_of_its_own() -> None:
    assert list(fields(Flow())) == list(RULE_CODES)
    assert len(set(STATE_CODES.values())) == len(STATE_CODES)


@pytest.mark.parametrize("acked", [True, False])
@pytest.mark.parametrize("peak", [0, 49, 50, 1499, 1500, 30_000])
@pytest.mark.parametrize("size", [1.0, 99.5, 100.0, 2999.5, 3000.0, 29_999.99, 30_000.0])
def test_they_agree_at_the_edges_of_the_window(client: redis.Redis, size: float, peak: float, acked: bool) -> None:
    step = Step("result", NOW_MS, 0, acked, latency_ms=1000.0)
    for ack_ratio, latency_ms in [(1.0, 20.0), (0.99, 20.0), (0.990001, 20.0), (1.0, 1000.0), (1.0, 999.99)]:
        for phase in Phase:
            round_ = Round(phase, NOW_MS - 2000.0, size, 15.0, 2.0, 13_000.0, float(peak))
            flow = Flow(window=Window(size, ack_ratio, latency_ms, seen=1000.0, round=round_))

            assert on_redis(client, flow, [step])[1] == played(flow, [step])


@pytest.mark.parametrize("phase", Phase)
def test_they_agree_whether_a_latency_differs_from_that_of_the_base(client: redis.Redis, phase: Phase) -> None:
    base = Base(size=100.0, results=100.0, nacks=0.0, latency_ms=0.0)
    for base_ms, latency_ms in product([1.0, 5.0, 20.0, 30.0, 50.0, 400.0], [*range(1, 41), *range(41, 600, 10)]):
        round_ = Round(phase, NOW_MS - 2000.0, 100.0, 99.0, 0.0, 99.0 * latency_ms, 100.0)
        window = Window(100.0, 1.0, 20.0, seen=1000.0, round=round_, base=base._replace(latency_ms=base_ms), step=3.0)
        steps = [Step("result", NOW_MS, 99, acked=True, latency_ms=float(latency_ms))]
        flow = Flow(window=window)

        assert on_redis(client, flow, steps)[1] == played(flow, steps), (base_ms, latency_ms)


def test_a_new_lane_is_the_same_in_lua(client: redis.Redis) -> None:
    fresh, _ = on_redis(client, Flow(), [])

    assert fresh == list(fields(Flow()).values())


def test_they_agree_from_the_first_message_through_slow_start_death_and_recovery(client: redis.Redis) -> None:
    # Given a lane that doubles to its largest slow-start window, then meets 40 nacks, then acks again
    steps: list[Step] = []
    for number in range(4500):
        now_ms = NOW_MS + number * 10 if number < 4000 else NOW_MS + 40_000 + (number - 4000) * 61_000
        acked = not 4000 <= number < 4040
        steps.append(Step("sent", now_ms, min(number + 3, 3000), count=1))
        steps.append(Step("result", now_ms, min(number + 2, 2999), acked, 5.0, number % 7 / 7))

    # When Lua and Python play the history
    _, told = on_redis(client, Flow(), steps)

    # Then every digit is the same, to the end
    assert told == played(Flow(), steps)
