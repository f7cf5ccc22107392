"""The law of flow control holds in Redis as in the simulator (bench/law.py), over random histories."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.law import RULES, Law, rule
from deliveries.backlog.codes import RULE_CODES, STATE_CODES
from deliveries.backlog.lanestate import parse_lane_state
from deliveries.rules.flow import Flow

NOW_MS = 1_790_000_000_000

# Plays calls of the rules on a state, and returns the state's fields with all digits.
PLAYER = """
local rules = {rules_result = rules_result, rules_restart = rules_restart, rules_spend = rules_spend}
local state, played = cjson.decode(ARGV[1]), {}
for _, call in ipairs(cjson.decode(ARGV[2])) do
  state.outstanding = call.outstanding
  rules[call.rule](state, unpack(call.arguments))
end
for name in pairs(FIRST_VALUES) do played[name] = string.format('%.17g', state[name]) end
return cjson.encode(played)
"""

Call = tuple[str, list[Any], int]


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    """Draw results, some from before a pause, sends and restarts; times mostly increase and sometimes step back."""
    now_ms, calls = NOW_MS, []
    mostly_acks = draw(st.booleans())
    for _ in range(draw(st.integers(1, 100))):
        now_ms += draw(st.sampled_from([-50, 0, 5]) | st.integers(0, 200) | st.integers(0, 70_000))
        outstanding = draw(st.integers(0, 60) | st.integers(0, 30_000))
        kind = draw(st.integers(0, 19))
        if kind == 0:
            calls.append(("rules_restart", [now_ms], outstanding))
        elif kind < 5:
            count = draw(st.integers(1, 500))
            calls.append(("rules_spend", [now_ms, count, draw(st.integers(0, count))], outstanding))
        else:
            acked = draw(st.integers(0, 9)) > 0 if mostly_acks else draw(st.booleans())
            latency_ms = draw(st.floats(0, 50) | st.floats(0, 20_000))
            dice = draw(st.floats(0, 1, exclude_max=True))
            repeated = draw(st.integers(0, 9)) == 0
            calls.append(("rules_result", [acked, latency_ms, now_ms, dice, repeated], outstanding))
    return calls


flows = st.fixed_dictionaries(
    {
        "window": st.sampled_from([1.0, 3.0, 99.5, 2999.5, 3000.0, 29_999.0]),
        "ack_ratio": st.floats(0, 1) | st.floats(0.98, 1),
        "results_seen": st.integers(1, 1000).map(float),
        "nack_share": st.floats(0, 0.5),
        "cap": st.sampled_from([0.0, 1.0, 250.0]),
        "rate": st.just(0.0) | st.floats(0.01, 10_000),
        "burst": st.just(0.0) | st.floats(0.5, 1000),
    }
).map(lambda fields: Flow(**fields))


def played(flow: Flow, calls: Sequence[Call]) -> Law:
    law = Law(flow)
    for name, arguments, outstanding in calls:
        law.state["outstanding"] = outstanding
        rule(name)(law.state, *arguments)
    return law


def played_in_redis(client: redis.Redis, flow: Flow, calls: Sequence[Call]) -> Flow:
    names = ("rule", "arguments", "outstanding")
    script = client.register_script(RULES + PLAYER)
    arguments = [json.dumps(flow._asdict()), json.dumps([dict(zip(names, call, strict=True)) for call in calls])]
    reply: Any = script(args=arguments)
    return Flow(**{name: float(value) for name, value in json.loads(reply).items()})


@pytest.fixture(scope="module")
def client(redis_server: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server) as connected:
        yield connected


# Both run the same Lua, in two interpreters.
@settings(max_examples=25)
@given(flow=flows, calls=histories())
def test_redis_and_the_simulator_have_the_same_law(client: redis.Redis, flow: Flow, calls: list[Call]) -> None:
    assert played_in_redis(client, flow, calls) == pytest.approx(played(flow, calls).flow, rel=1e-9, abs=1e-9)


@given(flow=flows, calls=histories())
def test_whatever_happens_a_lane_stays_within_its_bounds(flow: Flow, calls: list[Call]) -> None:
    law = played(flow, calls)
    now_ms = max((arguments[2] if name == "rules_result" else arguments[0]) for name, arguments, _ in calls)

    after = law.flow
    assert 1 <= after.window <= 30_000
    assert 0 <= after.nack_share <= 1
    assert 0 <= after.ack_ratio <= 1
    assert 0 <= after.gap_ms < 5000
    assert 1 <= law.tokens <= (flow.cap or 30_000)
    # And it is not stuck: after the longest pause, the gap and the wait for the bucket a message may go
    now_ms += 60_001
    at_ms = law.bucket_wait_ms(now_ms=now_ms) or now_ms
    assert law.free(outstanding=0, now_ms=at_ms + 0.001) >= 1


def test_a_lane_state_is_read_back_by_the_names_of_its_fields() -> None:
    flow = Flow(*(1e-9 / 3 + number / 3 for number in range(len(Flow._fields))))
    held = {RULE_CODES[name].encode(): repr(value).encode() for name, value in flow._asdict().items()}
    state = parse_lane_state({STATE_CODES["mode"].encode(): b"1", **held})
    assert state is not None
    assert state.flow == flow


def test_every_field_of_a_state_has_a_code_of_its_own() -> None:
    assert len(set(STATE_CODES.values())) == len(STATE_CODES)


def test_the_law_is_the_same_from_the_first_message_through_slow_start_death_and_recovery(client: redis.Redis) -> None:
    # Given a lane that doubles to its largest slow-start window, then meets 40 nacks, then acks again
    calls: list[Call] = []
    for number in range(4500):
        now_ms = NOW_MS + number * 10 if number < 4000 else NOW_MS + 40_000 + (number - 4000) * 61_000
        acked = not 4000 <= number < 4040
        calls.append(("rules_spend", [now_ms, 1, 0], min(number + 3, 3000)))
        calls.append(("rules_result", [acked, 5.0, now_ms, number % 7 / 7, False], min(number + 2, 2999)))

    # Then every digit is the same in Redis and in the simulator
    assert played_in_redis(client, Flow(), calls) == played(Flow(), calls).flow
