"""Typed readers of environment variables, for the settings file and the supervisor.

A secret may also be in a file whose path is `<NAME>_FILE`, because container platforms mount secrets as files.
"""

from __future__ import annotations

import ipaddress
import os
import re
from importlib.util import find_spec
from pathlib import Path

PREFIX = "PUSHHUB_"
#: A region's name is a part of a queue's name.
REGION_PATTERN = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})


class SettingError(ValueError):
    """The value of a setting can't be used. The text names the setting and the values that it accepts."""


def require_package(name: str, *, extra: str, why: str) -> None:
    """Raise SettingError, which says how to install a package that a small installation lacks, unless it is there."""
    if find_spec(name) is None:
        raise SettingError(f"{why} needs the package {name}: pip install 'pushhub[{extra}]'")


def text(name: str, default: str = "") -> str:
    return os.environ.get(PREFIX + name, "").strip() or default


def secret(name: str) -> str:
    path = text(name + "_FILE")
    if not path:
        return text(name)
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingError(f"{PREFIX}{name}_FILE={path!r}: {error.strerror}") from None


def switch(name: str, *, default: bool = False) -> bool:
    word = os.environ.get(PREFIX + name)
    if word is None:
        return default
    if word.strip().lower() in TRUE_WORDS:
        return True
    if word.strip().lower() in FALSE_WORDS:
        return False
    raise SettingError(f"{PREFIX}{name}={word!r}: give on or off")


def folder(name: str, default: Path) -> str:
    """Return a folder's path. `on` stands for the default, and `off` for no folder, which is ""."""
    word = text(name, "on")
    if word.lower() in TRUE_WORDS:
        return str(default)
    if word.lower() in FALSE_WORDS:
        return ""
    return str(Path(word).absolute())


def number(name: str, default: int, *, least: int = 0, most: int | None = None) -> int:
    word = text(name)
    if not word:
        return default
    try:
        value = int(word)
    except ValueError:
        raise SettingError(f"{PREFIX}{name}={word!r}: give a whole number") from None
    if value < least:
        raise SettingError(f"{PREFIX}{name}={word!r}: give {least} or more")
    if most is not None and value > most:
        raise SettingError(f"{PREFIX}{name}={word!r}: give {most} or less")
    return value


def fraction(name: str, default: float) -> float:
    """Return a number above 0 and up to 1."""
    word = text(name)
    try:
        value = float(word) if word else default
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise SettingError(f"{PREFIX}{name}={word!r}: give a number above 0 and up to 1")
    return value


def choice(name: str, options: list[str]) -> str:
    """Return one of the options, which are in upper case. The first is the default."""
    word = text(name, options[0]).upper()
    if word not in options:
        raise SettingError(f"{PREFIX}{name}={word!r}: give one of {', '.join(options)}")
    return word


def member(name: str) -> str:
    """Return a caller as policies name it, such as `user:me@localhost`, or ""."""
    word = text(name)
    if word and not re.fullmatch(r"(user|serviceAccount):[^@\s]+@[^@\s]+", word):
        raise SettingError(f"{PREFIX}{name}={word!r}: give a user:NAME@HOST or a serviceAccount:NAME@HOST")
    return word


def words(name: str) -> list[str]:
    """Return a list that is separated by commas."""
    return [word.strip() for word in text(name).split(",") if word.strip()]


def regions(name: str, *, default: str = "") -> list[str]:
    """Return a list of regions that is separated by commas."""
    names = words(name) or [default] * bool(default)
    if not all(REGION_PATTERN.fullmatch(word) for word in names):
        raise SettingError(
            f"{PREFIX}{name}={','.join(names)!r}: a region has up to 63 lower-case letters, digits and hyphens, and "
            "begins with a letter"
        )
    return names


def region(name: str, default: str) -> str:
    """Return the name of a region."""
    names = regions(name, default=default)
    if len(names) != 1:
        raise SettingError(f"{PREFIX}{name}={','.join(names)!r}: give one region")
    return names[0]


def ports(name: str) -> list[int]:
    """Return a list of port numbers that is separated by commas."""
    numbers = words(name)
    if not all(word.isdigit() and 0 < int(word) < 65536 for word in numbers):
        raise SettingError(f"{PREFIX}{name}={','.join(numbers)!r}: give port numbers separated by commas")
    return [int(word) for word in numbers]


def listen_address(name: str, default: str) -> tuple[str, int]:
    """Return host and port of `host:port`, where the host may be an IPv6 address in brackets."""
    word = text(name, default)
    host, colon, port = word.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingError(f"{PREFIX}{name}={word!r}: give host:port, for example {default}")
    return host.strip("[]") or "127.0.0.1", int(port)


def reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Return the address at which this machine reaches a server that listens on `address`."""
    host, port = address
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port  # noqa: S104


def url(address: tuple[str, int]) -> str:
    """Return the URL at which this machine reaches a server that listens on `address`."""
    host, port = reachable(address)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` is out of reach of other machines."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
