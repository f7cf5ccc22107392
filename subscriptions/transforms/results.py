"""The results of a message in a chain of functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Input:
    """A message, and the metadata that a function may read."""

    data: bytes
    attributes: Mapping[str, str]
    #: `message_id`, `publish_time` and `ordering_key`, as far as they are known.
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Transformed:
    """The message that came out of the last function."""

    data: bytes
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """A function threw an error, met a limit, or returned something that is no message."""

    why: str


class Filtered(Enum):
    """A function returned null."""

    FILTERED = "filtered"


FILTERED = Filtered.FILTERED
Result = Transformed | Failed | Filtered
