"""Bugs to plant into the processes of a storm, which its checker has to find.

Each is what a careless change of the product could do. A bug whose place in the code is gone makes its process fail.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: How long an answered publish is in memory only.
UNCOMMITTED_SECONDS = 1.0
#: How long a page of the backlog is on its way.
PAGE_SECONDS = 0.7
#: How many rounds of the settler go well.
ROUNDS = 60


@dataclass(frozen=True)
class Bug:
    """A bug: what plants it, and the faults under which it shows. Without faults it shows by itself."""

    plant: Callable[[], None]
    faults: tuple[str, ...] = ("endpoint-moved",)


def ack_before_commit() -> None:
    """Answer a publish before it is committed."""
    from deliveries.publish import storing, writer
    from deliveries.telemetry.events import Published

    taken = threading.local()
    take, commit = storing.take_message_ids, storing.commit_requests

    def take_again(count: int) -> list[int]:
        ids: Iterator[int] | None = getattr(taken, "ids", None)
        return take(count) if ids is None else [next(ids) for _ in range(count)]

    def commit_later(requests: Sequence[storing.Request], ids: Sequence[int]) -> None:
        time.sleep(UNCOMMITTED_SECONDS)
        taken.ids = iter(ids)
        commit(requests)

    def answer_at_once(requests: Sequence[storing.Request]) -> list[Published]:
        ids = take(sum(len(request.messages) for request in requests))
        threading.Thread(target=commit_later, args=(requests, ids)).start()
        published, first = [], 0
        for request in requests:
            its_ids = ids[first : first + len(request.messages)]
            first += len(its_ids)
            published.append(
                Published(
                    request.topic, its_ids, request.messages, request.owed, request.region, publishes=request.publishes
                )
            )
        return published

    storing.take_message_ids = take_again
    writer.commit_requests = answer_at_once


def retry_dropped() -> None:
    """Forget one nacked message in ten."""
    from deliveries.push.results import settler
    from deliveries.rules.outcome import Verdict

    store = settler.store_results

    def forget_some(lanes: Mapping[Any, Sequence[Any]]) -> None:
        for deliveries in lanes.values():
            for delivery in deliveries:
                if delivery.verdict is Verdict.NACK and random.random() < 0.1:
                    delivery.verdict = Verdict.DROP
        store(lanes)

    settler.store_results = forget_some


def token_leaked() -> None:
    """Keep the token of one settle in a hundred."""
    from deliveries.backlog.backlog import Backlog
    from deliveries.backlog.codes import STATE_CODES

    settle = Backlog.settle_and_take

    def keep_some(self: Backlog, settlements: Mapping[Any, Any], **more: Any) -> Any:
        settled = settle(self, settlements, **more)
        for lane in settlements:
            if random.random() < 0.01:
                self.client.hincrby(lane.state_key, STATE_CODES["outstanding"], 1)
        return settled

    Backlog.settle_and_take = keep_some


def order_ignored() -> None:
    """Take every message for one without an ordering key."""
    from deliveries.backlog import paging
    from deliveries.publish import offering

    for module in (paging, offering):
        assert module.key_digest
        module.key_digest = lambda ordering_key: ""


def settle_repeated() -> None:
    """Settle one ack in fifty a second time, as a message that has to be sent again."""
    from deliveries.backlog.codes import Place
    from deliveries.push.results import returning, settler
    from deliveries.rules.outcome import Verdict

    give_back = settler.Settler._give_back

    def give_back_twice(self: settler.Settler, lanes: Mapping[Any, Sequence[Any]], *more: Any) -> Any:
        given_back, backlog = give_back(self, lanes, *more), self._backlog
        for lane, deliveries in lanes.items():
            for delivery in deliveries:
                if delivery.verdict is Verdict.ACK and random.random() < 0.02:
                    name = str(delivery.message_id)
                    key = lane.state_key.removesuffix("s")
                    backlog.client.hset(f"{key}m", name, returning.next_task(delivery, delivery.task.attempt))
                    backlog.client.hset(f"{key}d", name, Place.RETRYING)
                    backlog.client.zadd(f"{key}z", {name: 0})
        return given_back

    settler.Settler._give_back = give_back_twice


def limits_lost() -> None:
    """Make a lane that Redis has lost anew without its subscription's limits, and never notice."""
    from deliveries.backlog import lanes, reconcile
    from deliveries.publish import offering
    from deliveries.rules.limits import NO_LIMITS

    configuration, offered = lanes.lane_configuration, lanes.lane_offered

    def configuration_without(lane: Any, settings: Any, **more: Any) -> Any:
        return configuration(lane, replace(settings, attributes={}), **more)

    lanes.lane_configuration = reconcile.lane_configuration = configuration_without
    reconcile.lane_agrees = lambda state, settings: state is not None
    offering.lane_offered = lambda lane, settings: offered(lane, settings)._replace(limits=NO_LIMITS)


def thread_dead() -> None:
    """End the work of the settler after a while, although its thread goes on and reports that it is alive."""
    from deliveries.push.results.settler import Settler

    work = Settler._turn
    rounds = 0

    def work_for_a_while(self: Settler) -> None:
        nonlocal rounds
        rounds += 1
        if rounds <= ROUNDS:
            work(self)
        else:
            time.sleep(1)

    Settler._turn = work_for_a_while


def page_of_an_older_generation() -> None:
    """Take a page for the lane of today that was read for the lane before it; pages are on their way for a while."""
    from deliveries.backlog import scripts
    from deliveries.store import statements

    read, lua_file = statements.read_pages, scripts.lua_file

    def read_slowly(ranges: Any) -> Any:
        pages = read(ranges)
        time.sleep(PAGE_SECONDS)
        return pages

    def without_check(verb: str) -> str:
        text = lua_file(verb)
        if verb != "page":
            return text
        text, count = re.subn(
            "if not state or state.generation .* then return 0 end", "if not state then return 0 end", text
        )
        assert count == 1
        return text

    statements.read_pages = read_slowly
    scripts.lua_file = without_check


def sweep_deletes_too_much() -> None:
    """Sweep away every message that is some seconds old, whether it is settled or not."""
    from django.db import connection

    from deliveries.store import messagerows

    assert messagerows.delete_settled_messages

    def delete_all(*, after_id: int, to_id: int, **_: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM deliveries_message WHERE id > %s AND id <= %s", [after_id, to_id])
            return int(cursor.rowcount)

    messagerows.delete_settled_messages = delete_all


BUGS = {
    "ack-before-commit": Bug(ack_before_commit, ("kill",)),
    "retry-dropped": Bug(retry_dropped),
    "token-leaked": Bug(token_leaked),
    "order-ignored": Bug(order_ignored),
    "settle-repeated": Bug(settle_repeated),
    "limits-lost": Bug(limits_lost, ("redis-flushed",)),
    "thread-dead": Bug(thread_dead),
    "page-of-an-older-generation": Bug(page_of_an_older_generation, ("redis-flushed",)),
    "sweep-deletes-too-much": Bug(sweep_deletes_too_much),
}
