"""The functions of message transforms, as rows store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Function:
    """A user's JavaScript function, and the code that defines it."""

    name: str
    code: str


def functions_on(transforms: Sequence[Mapping[str, Any]] | None) -> Sequence[Function]:
    """Return the functions of the transforms that are not disabled, in their order."""
    if not transforms:
        return ()
    return [
        Function(transform["javascriptUdf"]["functionName"], transform["javascriptUdf"]["code"])
        for transform in transforms
        if not transform.get("disabled")
    ]
