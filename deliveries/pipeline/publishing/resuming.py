"""Continues the partition of a frame after the messages that an earlier attempt published.

Spark may compute a frame again with other rows in a partition, for instance because an archive was compacted meanwhile.
To skip as many rows as were published would then lose messages. So a part has a fingerprint of its published messages,
and a partition that begins with others is published from its first row on.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import IO, TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from deliveries.models import PublishPart
    from deliveries.rules.payload import NewMessage

#: The bytes of skipped messages that are kept in memory; beyond that they go to a temporary file.
MEMORY_BYTES = 10_000_000


class Fingerprint:
    """A hash of messages in their order."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, encoded: bytes) -> None:
        self._hash.update(encoded)

    def text(self) -> str:
        return self._hash.hexdigest()


def messages_left(
    messages: Iterator[NewMessage], part: PublishPart, fingerprint: Fingerprint
) -> Iterator[tuple[int, NewMessage]]:
    """Yield the messages that the part still has to publish, with their positions, which begin at 1.

    When a message is yielded, the fingerprint covers all messages up to it.
    """
    skipped = 0
    if part.position:
        with tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES) as kept:
            for message in islice(messages, part.position):
                encoded = _encode(message)
                kept.write(encoded)
                fingerprint.add(encoded)
                skipped += 1
            # A part that an older release began has no fingerprint.
            if part.fingerprint not in ("", fingerprint.text()):
                _restart(part)
                fingerprint.clear()
                kept.seek(0)
                for position in range(1, skipped + 1):
                    message = _decode(kept)
                    fingerprint.add(_encode(message))
                    yield position, message
    for position, message in enumerate(messages, start=skipped + 1):
        fingerprint.add(_encode(message))
        yield position, message


def _restart(part: PublishPart) -> None:
    from deliveries.models import PublishPart
    from deliveries.store.writelock import write_transaction

    with write_transaction():
        moved = PublishPart.objects.filter(pk=part.pk, position=part.position).update(
            position=0, fingerprint="", finished=False
        )
    if not moved:
        raise RuntimeError(f"part {part.number} is being published by another attempt of this task")
    part.position = 0


def _encode(message: NewMessage) -> bytes:
    fields = orjson.dumps([message.attributes, message.ordering_key], option=orjson.OPT_SORT_KEYS)
    return b"%d %d\n%b%b" % (len(message.data), len(fields), message.data, fields)


def _decode(file: IO[bytes]) -> NewMessage:
    from deliveries.rules.payload import NewMessage

    data_size, fields_size = map(int, file.readline().split())
    data = file.read(data_size)
    attributes, ordering_key = orjson.loads(file.read(fields_size))
    return NewMessage(data, attributes, ordering_key)
