"""Messages of lanes whose endpoints ack within a second go before those of others: slow, down or not tried yet."""

from __future__ import annotations

import secrets

import pytest
from kombu.transport.redis import Channel

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.records import Lane, Offer, OfferedLane, OfferedMessage, Settlement, work_key
from deliveries.rules.ids import EPOCH_MS, first_id_at
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import escape_message, parse_own, queue_name
from tests.lanes import configure, lane_change, low_queue

PROMPT = Lane(7, "here")
OTHERS = [Lane(number, "here") for number in range(100, 150)]
FIRST = first_id_at(EPOCH_MS + 1_000_000)


@pytest.fixture
def backlog(redis_url: str) -> Backlog:
    return Backlog(client_of(redis_url), limit=100)


def offer(backlog: Backlog, lane: Lane, count: int) -> list[str]:
    ids = [str(FIRST + number) for number in range(count)]
    texts = [OfferedMessage(int(name), escape_message({"messageId": name, "publishTime": "t"})) for name in ids]
    backlog.offer([Offer(lane.region, [OfferedLane(lane, Mode.PUSH)], texts)])
    return ids


def fetch(backlog: Backlog, count: int) -> list[int]:
    """Return the subscriptions of the messages that a worker fetches, as a batch of its own."""
    arguments = ["here", secrets.token_hex(3), count, backlog.limit]
    messages = backlog.scripts.fetch(keys=[queue_name("here"), work_key("w")], args=arguments)[0]
    parts = [parse_own(message) for message in messages]
    return [int(task_id.split(".")[1]) for task_id, _ in filter(None, parts)]


def acked(backlog: Backlog, lane: Lane, message_id: str, *, latency_ms: float) -> bool:
    """Ack a message, and return whether the lane is prompt."""
    settlement = Settlement()
    settlement.add(message_id, Verdict.ACK, latency_ms)
    return backlog.settle({lane: settlement}, dice=0.5, finished={})[lane].is_prompt


def crowd(backlog: Backlog) -> None:
    """Let messages wait in fifty lanes that were not tried yet, and behind them in a prompt one."""
    for lane in (PROMPT, *OTHERS):
        configure(backlog, lane, mode=Mode.PUSH, action="new")
    for lane in OTHERS:
        offer(backlog, lane, 3)
    lane_change(backlog, PROMPT, results_seen=10, ack_ratio=1, latency_ms=20, window=100)
    offer(backlog, PROMPT, 60)


def test_prompt_messages_go_first_and_leave_the_others_a_sixteenth(backlog: Backlog) -> None:
    crowd(backlog)
    assert fetch(backlog, 32) == [7] * 30 + [100, 100]
    assert fetch(backlog, 32) == [7] * 30 + [100, 101]


def test_the_others_get_what_prompt_messages_leave(backlog: Backlog) -> None:
    crowd(backlog)
    fetch(backlog, 32)
    assert (
        fetch(backlog, 60)
        == [7] * 30 + [100] + [101] * 3 + [number for number in range(102, 110) for _ in range(3)] + [110] * 2
    )
    assert len(fetch(backlog, 300)) == 150 - 32


def test_a_lane_is_prompt_while_its_endpoint_acks_within_a_second(backlog: Backlog) -> None:
    configure(backlog, PROMPT, mode=Mode.PUSH, action="new")
    first, second, third = offer(backlog, PROMPT, 3)
    assert backlog.client.llen(low_queue("here")) == 3
    fetch(backlog, 3)
    assert acked(backlog, PROMPT, first, latency_ms=999)
    assert not acked(backlog, PROMPT, second, latency_ms=1100)
    lane_change(backlog, PROMPT, latency_ms=10, backoff_level=9)
    assert acked(backlog, PROMPT, third, latency_ms=10), "an ack ends the backoff"


def test_an_endpoint_that_is_down_is_not_prompt(backlog: Backlog) -> None:
    crowd(backlog)
    lane_change(backlog, PROMPT, backoff_level=9, backoff_since_ms=4e12, resume_ms=4e12)
    fetch(backlog, 64)
    assert not acked(backlog, PROMPT, str(FIRST), latency_ms=10)


def test_stock_workers_get_some_of_the_others_however_much_is_prompt(backlog: Backlog) -> None:
    """Their transport, kombu's, takes the highest priority first."""
    crowd(backlog)
    waiting = [backlog.client.llen(name) for name in (queue_name("here"), low_queue("here"))]
    backlog.wake("here")
    assert [backlog.client.llen(name) for name in (queue_name("here"), low_queue("here"))] == [
        waiting[0] + 50,
        waiting[1] - 50,
    ]


def test_the_others_have_the_lowest_priority_of_kombu(backlog: Backlog) -> None:
    crowd(backlog)
    channel = Channel.__new__(Channel)
    assert channel._q_for_pri(queue_name("here"), 9) == low_queue("here")
