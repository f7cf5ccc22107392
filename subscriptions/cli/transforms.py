"""The flags of message transforms, which are the same for topics and subscriptions."""

from __future__ import annotations

from typing import Any

from subscriptions.cli.errors import CliError
from subscriptions.cli.values import content_of
from subscriptions.cli.verbs import Options, flag

FILE = flag("--message-transforms-file", "a file in JSON or YAML with a list of message transforms", metavar="FILE")
CLEAR = flag("--clear-message-transforms", "remove all message transforms", action="store_true")


def transforms_of(path: str) -> list[Any]:
    transforms = content_of(path)
    if not isinstance(transforms, list):
        raise CliError(f"{path}: not a list of message transforms")
    return transforms


def fields_of(options: Options) -> dict[str, Any]:
    path = options["message_transforms_file"]
    return {"messageTransforms": transforms_of(path)} if path else {}
