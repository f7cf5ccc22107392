"""Field masks of update requests, pure (docs/spec.md#field-masks).

A path is a tuple of lowerCamelCase names, whichever spelling the caller used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.protojson import Message, snake_case

Path = tuple[str, ...]


def mask_paths(mask: str, message: Message, *, mutable: frozenset[str]) -> list[Path]:
    """Return the paths of a comma-separated mask. Each must exist in `message` and lead to a mutable field."""
    words = [word.strip() for word in mask.split(",")]
    if not mask.strip() or not all(words):
        raise InvalidArgument(
            f"The update_mask in the Update{message.name}Request must be set, and must contain a non-empty paths list.",
            field="updateMask",
        )
    return [_path(word, message, mutable=mutable) for word in words]


def mask_of_snake_paths(paths: Iterable[str], message: Message) -> str:
    """Return the comma-joined mask of a gRPC request, whose paths are in snake_case only (docs/spec.md#field-masks)."""
    for path in paths:
        if path != path.lower():
            raise _unknown(path, message)
    return ",".join(paths)


def mask_words(mask: str, *, known: frozenset[str]) -> list[str]:
    """Return the fields of a mask that can name whole fields only, in either spelling."""
    spellings = {spelling: field for field in known for spelling in (field, snake_case(field))}
    words = [word.strip() for word in mask.split(",")]
    for word in words:
        if word not in spellings:
            raise InvalidArgument(
                f"Invalid update_mask provided: '{clipped(word)}' is not a known field.", field="updateMask"
            )
    return [spellings[word] for word in words]


def masked(
    current: Mapping[str, Any], values: Mapping[str, Any], paths: list[Path], message: Message
) -> dict[str, Any]:
    """Return `current` with the value of each path taken from `values`. A path that `values` lacks is cleared.

    FieldMask.MergeMessage differs: it doesn't clear a path whose parent `values` lacks, and it creates empty parents.
    """
    result = deepcopy(dict(current))
    for path in paths:
        _take(result, values, path, message)
    return result


def _path(word: str, message: Message, *, mutable: frozenset[str]) -> Path:
    path: list[str] = []
    inside: Message | None = message
    for part in word.split("."):
        field = inside.spellings.get(part) if inside is not None else None
        if inside is None or field is None or (path and field in inside.output_only):
            raise _unknown(word, message)
        path.append(field)
        kind = inside.fields[field]
        inside = kind if isinstance(kind, Message) else None
    if path[0] not in mutable:
        raise InvalidArgument(
            f"Invalid update_mask provided in the Update{message.name}Request: "
            f"the '{'.'.join(snake_case(part) for part in path)}' field in the {message.name} is not mutable.",
            field="updateMask",
        )
    return tuple(path)


def _unknown(word: str, message: Message) -> InvalidArgument:
    return InvalidArgument(
        f"Invalid update_mask provided in the Update{message.name}Request: "
        f"'{clipped(word)}' is not a known {message.name} field. "
        "Note that field paths must be of the form 'push_config' rather than 'pushConfig'.",
        field="updateMask",
    )


def _take(target: dict[str, Any], source: Mapping[str, Any], path: Path, message: Message) -> None:
    name, rest = path[0], path[1:]
    # Clearing a field inside a message that isn't there must not create the message.
    if not _holds(source, path) and not (rest and name in target):
        target.pop(name, None)
        return
    for sibling in message.siblings(name):
        target.pop(sibling, None)
    inside = message.fields[name]
    if rest and isinstance(inside, Message):
        _take(target.setdefault(name, {}), source.get(name, {}), rest, inside)
    else:
        target[name] = deepcopy(source[name])


def _holds(source: Mapping[str, Any], path: Path) -> bool:
    name, rest = path[0], path[1:]
    return name in source and (not rest or _holds(source[name], rest))
