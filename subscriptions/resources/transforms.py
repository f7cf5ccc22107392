"""Message transforms: what requests may contain (docs/spec-delivery.md#message-transforms)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pushhub.common.errors import InvalidArgument, clipped
from subscriptions.resources.table import Values, unsupported
from subscriptions.transforms.functions import Function

#: A name of ASCII letters, digits, `_` and `$`; JavaScript itself refuses its keywords.
NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]{0,254}", re.ASCII)


def transforms_stored(transforms: Sequence[Values] | None) -> list[Values] | None:
    """Return what a row stores; None without transforms, so that reading the row costs nothing."""
    if not transforms:
        return None
    functions_of(transforms, field="messageTransforms")
    return list(transforms)


def functions_of(transforms: Sequence[Values], *, field: str) -> list[Function]:
    """Return the function of each transform, whether it is on or off.

    Raises InvalidArgument, or Unimplemented for a transform that is no function. `field` names the list in errors.
    """
    functions: list[Function] = []
    for index, transform in enumerate(transforms):
        path = f"{field}[{index}]"
        function = function_of(transform, field=path)
        if any(function.name == other.name for other in functions):
            raise InvalidArgument(
                f"Each function of a resource must have a unique name (function_name={clipped(function.name)}).",
                field=f"{path}.javascriptUdf.functionName",
            )
        functions.append(function)
    return functions


def function_of(transform: Values, *, field: str) -> Function:
    for kind in ("aiInference", "compression"):
        if kind in transform:
            raise unsupported(f"{field}.{kind}")
    if "javascriptUdf" not in transform:
        raise InvalidArgument("A message transform must have a javascriptUdf.", field=f"{field}.javascriptUdf")
    udf: Mapping[str, Any] = transform["javascriptUdf"]
    name, code = udf.get("functionName", ""), udf.get("code", "")
    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"Invalid function name given (function_name={clipped(name)}). It must be a name in JavaScript, of ASCII "
            "letters, digits, _ and $.",
            field=f"{field}.javascriptUdf.functionName",
        )
    if not code:
        raise InvalidArgument("The code of a function must not be empty.", field=f"{field}.javascriptUdf.code")
    return Function(name, code)
