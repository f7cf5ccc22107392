"""The values of gcloud's flags: durations, lists of pairs, names, files."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import Any

from pushhub.common.durations import read_duration
from subscriptions.cli.errors import CliError

NEVER = "never"
NO_PROJECT = "no project: give --project, or set PUSHHUB_PROJECT"


def duration(text: str) -> str:
    """Return `600`, `10s`, `5m` or `1d12h` as the API writes durations."""
    read = read_duration(text)
    if read is None:
        raise ArgumentTypeError(f"{text!r}: give a number and one of s, m, h, d, such as 10s, 5m or 1d12h")
    return read


def duration_or_never(text: str) -> str:
    return NEVER if text == NEVER else duration(text)


def seconds(text: str) -> int:
    """Return a duration in whole seconds."""
    seconds = duration(text).removesuffix("s")
    if "." in seconds:
        raise ArgumentTypeError(f"{text!r}: give whole seconds")
    return int(seconds)


def count(text: str) -> int:
    """Return a number of items, which is 1 or more."""
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def pairs(text: str) -> dict[str, str]:
    """Parse `a=b,c=d`; a value may contain `=`. As in gcloud, `^;^a=b;c=d` splits at another character."""
    sign = ","
    separator = re.match(r"\^(.)\^", text)
    if separator is not None:
        sign, text = separator[1], text[separator.end() :]
    result: dict[str, str] = {}
    for part in text.split(sign) if text else []:
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise ArgumentTypeError(f"{part!r}: give key=value, several separated by commas")
        result[key] = value
    return result


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def full_name(name: str, collection: str, project: str) -> str:
    """Return the full name of `orders` or `projects/p/topics/orders`. Raises CliError for an id without a project."""
    if name.startswith("projects/"):
        return name
    if not name or "/" in name:
        raise CliError(f"{name!r}: give an id, or projects/PROJECT/{collection}/ID")
    return f"{project_name(project)}/{collection}/{name}"


def project_name(project: str) -> str:
    """Return the full name of the project. Raises CliError if none was given."""
    if not project:
        raise CliError(NO_PROJECT)
    return f"projects/{project}"


def content_of(path: str) -> Any:
    """Return the content of a file in JSON or YAML. Raises CliError."""
    import yaml  # slow to load, and rarely needed

    try:
        text = Path(path).read_text(encoding="utf-8")
        return json.loads(text) if text.lstrip().startswith(("{", "[")) else yaml.safe_load(text)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError):
        raise CliError(f"{path}: neither JSON nor YAML") from None
