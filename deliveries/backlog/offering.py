"""Divides offers into calls of a script that do not block Redis for long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from deliveries.backlog.records import Offer, OfferedLane, OfferedMessage, all_cells, grouped

#: The most work of one round trip of offers, in messages: it takes Redis a few ms, in which it answers nobody else.
MAX_OFFER_WEIGHT = 1000
#: The most work of the messages of one call.
MAX_MESSAGES_WEIGHT = 250
#: The messages that take as long as a lane, and the bytes that take as long as a message.
LANE_AS_MESSAGES = 10
BYTES_AS_A_MESSAGE = 1000


def split_offers(
    offers: Iterable[Offer],
) -> Iterator[tuple[Offer, Sequence[OfferedLane], Sequence[OfferedMessage]]]:
    """Yield the lanes, of one cell, and the messages of each call that makes the offers, each of a bounded weight."""
    for offer in offers:
        for lanes in _by_cell(offer.lanes):
            for messages in _message_chunks(offer.messages):
                count = max(MAX_OFFER_WEIGHT // weigh_offer(lanes[:1], messages), 1)
                for start in range(0, len(lanes), count):
                    yield offer, lanes[start : start + count], messages


def _by_cell(lanes: Sequence[OfferedLane]) -> Iterable[Sequence[OfferedLane]]:
    return grouped(lanes, lambda offered: offered.lane.cell).values() if len(all_cells()) > 1 else [lanes]


def _message_chunks(messages: Sequence[OfferedMessage]) -> Iterator[Sequence[OfferedMessage]]:
    start = weight = 0
    for index, message in enumerate(messages):
        message_weight = _message_weight(message.text)
        if index > start and weight + message_weight > MAX_MESSAGES_WEIGHT:
            yield messages[start:index]
            start, weight = index, 0
        weight += message_weight
    if start < len(messages):
        yield messages[start:]


def _message_weight(text: str) -> int:
    return 1 + len(text) // BYTES_AS_A_MESSAGE


def weigh_offer(lanes: Sequence[OfferedLane], messages: Sequence[OfferedMessage]) -> int:
    """Return how long offering the messages to the lanes takes, in messages."""
    return len(lanes) * (LANE_AS_MESSAGES + sum(_message_weight(message.text) for message in messages))
