"""How long the settler lets results gather, and which results end its longer pause."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from deliveries.backlog.records import Lane, LaneFlow, Take, Taken
from deliveries.push.results import gathering
from deliveries.push.results.gathering import GATHER_SECONDS, QUIET_SECONDS, WORTH_A_COMMIT, Gathering
from deliveries.push.results.settler import Settler
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import wire_message
from deliveries.rules.taskmessage import DeliverTask

QUIET, BUSY = Lane(7, "local"), Lane(8, "local")


def round_of(spare: dict[Lane, int], rounds: Gathering | None = None) -> Gathering:
    """Return the gathering after a round in which lanes were left with these spare tokens."""
    rounds = rounds or Gathering()
    rounds.begin_turn()
    rounds.settled({lane: LaneFlow(100, 0, spare=count) for lane, count in spare.items()})
    return rounds


@pytest.mark.parametrize(
    ("spare", "count", "seconds"),
    [
        pytest.param({QUIET: WORTH_A_COMMIT}, 1, GATHER_SECONDS + QUIET_SECONDS, id="a quiet lane"),
        pytest.param({QUIET: WORTH_A_COMMIT - 1}, 1, GATHER_SECONDS, id="an idle lane with a small window"),
        pytest.param({QUIET: WORTH_A_COMMIT, BUSY: 0}, 2, 0.003, id="a lane that waits for tokens among them"),
        pytest.param({BUSY: 0}, WORTH_A_COMMIT, GATHER_SECONDS, id="many results"),
        pytest.param({BUSY: -1, QUIET: 3}, WORTH_A_COMMIT, 0.003, id="many results for which ordering keys wait"),
        pytest.param({}, 0, 0.003, id="no results"),
    ],
)
def test_the_pause_depends_on_the_lanes_of_the_round(spare: dict[Lane, int], count: int, seconds: float) -> None:
    rounds = round_of(spare)
    pause = rounds.pause_seconds(count, spent_seconds=0.003) + rounds.quiet_seconds(count)
    assert pause == pytest.approx(seconds)


def test_only_a_few_acks_of_quiet_lanes_can_wait() -> None:
    rounds = round_of({QUIET: WORTH_A_COMMIT, BUSY: WORTH_A_COMMIT - 1})
    assert rounds.can_wait(QUIET, is_ack=True, waiting=WORTH_A_COMMIT - 1)
    assert not rounds.can_wait(QUIET, is_ack=True, waiting=WORTH_A_COMMIT)
    assert not rounds.can_wait(QUIET, is_ack=False, waiting=0)
    assert not rounds.can_wait(BUSY, is_ack=True, waiting=0)
    assert not rounds.can_wait(Lane(9, "local"), is_ack=True, waiting=0)


def test_a_lane_is_quiet_until_its_tokens_are_in_use() -> None:
    rounds = round_of({QUIET: WORTH_A_COMMIT})
    assert round_of({BUSY: 3}, rounds).can_wait(QUIET, is_ack=True, waiting=0)
    assert not round_of({QUIET: 0}, rounds).can_wait(QUIET, is_ack=True, waiting=0)


def test_a_bounded_number_of_lanes_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "MOST_LANES", 10)
    rounds = Gathering()
    for number in range(100):
        round_of({Lane(number, "local"): WORTH_A_COMMIT, Lane(-number, "local"): -1}, rounds)
    assert len(rounds._quiet_lanes) <= 11
    assert len(rounds._keyed_lanes) <= 11


def test_a_lane_waits_for_its_keys_until_none_of_its_messages_does() -> None:
    rounds = round_of({BUSY: -1, QUIET: 3})
    assert (rounds.waits_for_keys(BUSY), rounds.waits_for_keys(QUIET), rounds.has_keys) == (True, False, True)
    assert round_of({QUIET: 3}, rounds).waits_for_keys(BUSY)
    assert not rounds.has_keys
    assert not round_of({BUSY: 1}, rounds).waits_for_keys(BUSY)


class TwoOutstanding:
    """A worker that has two messages."""

    stages = SimpleNamespace(outstanding={"1": None, "2": None})

    def takes(self, counts: Mapping[str, int]) -> list[Take]:
        raise NotImplementedError

    def taken(self, taken: Taken) -> None:
        raise NotImplementedError


def test_the_results_of_all_messages_end_the_pause() -> None:
    settler = Settler("worker", on_settled=lambda deliveries, flows: None, intake=TwoOutstanding())
    for is_last in (False, True):
        task = DeliverTask(7, "local", 1, wire_message(1, b"x", {}, ""))
        PushDelivery(task, "1", batch=None, lane=BUSY, finish=settler.finish).settle_as(Verdict.ACK)
        assert settler._complete.is_set() == is_last


@pytest.mark.parametrize(("verdict", "is_urgent"), [(Verdict.ACK, False), (Verdict.NACK, True)])
def test_a_nack_ends_the_longer_pause(verdict: Verdict, is_urgent: bool) -> None:
    # Given a settler that has settled a quiet lane
    settler = Settler("worker", on_settled=lambda deliveries, flows: None)
    round_of({QUIET: WORTH_A_COMMIT}, settler._gathering)
    # When a push of that lane ends
    task = DeliverTask(7, "local", 1, wire_message(1, b"x", {}, ""))
    delivery = PushDelivery(task, "1", batch=None, lane=QUIET, finish=settler.finish)
    delivery.settle_as(verdict)
    # Then only a nack is settled at once
    assert settler._urgent.is_set() == is_urgent
