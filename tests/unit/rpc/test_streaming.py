"""A stream whose client sends requests and doesn't read the responses: what is kept for it, and what is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from deliveries.rpc import streaming
from deliveries.rpc.streaming import NOTE_BYTES, Request, Stream
from pushhub.common.errors import PermissionDenied
from subscriptions.models import Subscription

ACK_IDS = ["x" * 100] * 1000


class Client:
    """Sends requests, and counts those that were taken."""

    def __init__(self, requests: Iterator[Any]) -> None:
        self.taken = 0
        self._requests = requests

    async def requests(self) -> AsyncIterator[Any]:
        for request in self._requests:
            self.taken += 1
            yield request


@pytest.mark.parametrize(
    ("request_", "count"), [(Request(), 50_000), (Request(ack_ids=ACK_IDS), 100)], ids=["pings", "confirmations"]
)
def test_requests_wait_while_a_client_reads_no_responses(
    request_: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: object, **__: object) -> set[str]:
        return set()

    async def run() -> None:
        monkeypatch.setattr(streaming, "in_thread", at_once)
        monkeypatch.setattr(streaming, "AUTHORIZE_SECONDS", 1e6)
        monkeypatch.setattr(streaming, "count_request", Mock())
        client = Client(iter([request_] * count))
        stream = Stream(Mock(), Request(protocol_version=1), Subscription(pk=1, enable_exactly_once_delivery=True))
        hearing = asyncio.create_task(stream._hear(client.requests()))
        answered = 0
        while answered < count:
            taken = -1
            while client.taken > taken:
                taken = client.taken
                await asyncio.sleep(0)
            notes = stream._noted()
            assert sum(note.ByteSize() for note in notes) < NOTE_BYTES + 200_000
            assert 0 < len(notes) <= NOTE_BYTES // 100 + 1
            answered += len(notes)
        await hearing
        assert answered == client.taken == count

    asyncio.run(run())


def test_nothing_is_taken_from_a_caller_who_may_no_longer_pull(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody yields responses here, as while the client reads none: the stream's other task waits for that."""

    async def directly(work: Any, *arguments: object, **named: object) -> Any:
        return work(*arguments, **named)

    monkeypatch.setattr(streaming, "in_thread", directly)
    monkeypatch.setattr(streaming, "AUTHORIZE_SECONDS", 0.0)
    acknowledged, modified = Mock(), Mock()
    monkeypatch.setattr(streaming, "acknowledge_messages", acknowledged)
    monkeypatch.setattr(streaming, "modify_ack_deadlines", modified)
    call = Mock()
    call.authorized.side_effect = PermissionDenied("revoked")
    stream = Stream(call, Request(), Subscription(pk=1))
    acks = Request(ack_ids=["a"])
    extension = Request(modify_deadline_ack_ids=["b"], modify_deadline_seconds=[600])

    for request in (acks, extension):
        with pytest.raises(PermissionDenied):
            asyncio.run(stream._hear(Client(iter([request])).requests()))

    assert (acknowledged.call_count, modified.call_count) == (0, 0)
