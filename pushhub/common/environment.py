"""Typed readers of environment variables, for the settings file and the supervisor.

A secret may also be in a file whose path is `<NAME>_FILE`, because container platforms mount secrets as files.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import check_address, is_remote

PREFIX = "PUSHHUB_"
#: What `make up` and the emulator set, and the principal of their callers without credentials.
DEVELOPMENT_DEFAULTS = {"PUSHHUB_DEVELOPMENT": "1", "PUSHHUB_ALLOW_HTTP": "1", "PUSHHUB_ALLOW_PRIVATE": "1"}
DEVELOPER = "user:developer@localhost"
#: A region's name is a part of a queue's name.
REGION_PATTERN = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
TRUE_WORDS = frozenset({"1", "true", "yes", "on"})
FALSE_WORDS = frozenset({"", "0", "false", "no", "off"})
#: A host name. It may have underscores, as containers' names do.
HOST_PATTERN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", re.ASCII)
#: How much the name of a variable has to resemble that of a setting to be taken for a misspelling.
LIKENESS = 0.85
#: The names, without the prefix, that were read. All others with the prefix mean nothing.
_read_names = {"FLOWER_LOGIN", "FLOWER_LOGIN_FILE", "PROJECT", "TOKEN", "URL"}


class StartError(Exception):
    """PushHub can't start; the text is the one line that the user sees."""


class SettingError(ValueError):
    """The value of a setting can't be used. The text names the setting and the values that it accepts."""


def require_package(name: str, *, extra: str, why: str) -> None:
    """Raise SettingError, which says how to install a package that a small installation lacks, unless it is there."""
    if find_spec(name) is None:
        raise SettingError(f"{why} needs the package {name}: pip install 'pushhub[{extra}]'")


def misspelt() -> list[str]:
    """Return a sentence for each variable that resembles a setting and is none. Call this after the settings are read.

    Others are ignored: Kubernetes, for example, sets PUSHHUB_PORT for a service of that name.
    """
    unknown = (name.removeprefix(PREFIX) for name in os.environ if name.startswith(PREFIX))
    close = {name: get_close_matches(name, _read_names, n=1, cutoff=LIKENESS) for name in unknown}
    return [
        f"{PREFIX}{name} is no setting of PushHub: did you mean {PREFIX}{names[0]}?"
        for name, names in close.items()
        if names and name not in _read_names
    ]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Turn an InvalidArgument into a SettingError about this setting."""
    try:
        yield
    except InvalidArgument as error:
        raise SettingError(f"{PREFIX}{name}: {error.message}") from None


def text(name: str, default: str = "") -> str:
    _read_names.add(name)
    return os.environ.get(PREFIX + name, "").strip() or default


def secret(name: str) -> str:
    path = text(name + "_FILE")
    if not path:
        return text(name)
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingError(f"{PREFIX}{name}_FILE={path!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{PREFIX}{name}_FILE={path!r}: it is no text in UTF-8") from None


def switch(name: str, *, default: bool = False) -> bool:
    _read_names.add(name)
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


def check_own_folder(folder: Path, *, like: Path) -> None:
    """Raise SettingError if a folder in a place where everybody may write is not the one that PushHub has made there.

    It belongs to whom `like` belongs. A folder that doesn't exist is nobody else's.
    """
    with suppress(FileNotFoundError):
        found = folder.lstat()
        owner = like.stat().st_uid if like.exists() else os.geteuid()
        if found.st_uid != owner or stat.S_IMODE(found.st_mode) != 0o700 or not stat.S_ISDIR(found.st_mode):
            raise SettingError(f"{folder} is not this user's alone: remove it, or give {PREFIX}DATA a shorter path")


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


def matching(name: str, pattern: str, what: str, *, default: str = "") -> str:
    """Return a text, which matches the pattern unless it is empty. `what` describes such a text."""
    word = text(name, default)
    if word and not re.fullmatch(pattern, word, re.ASCII):
        raise SettingError(f"{PREFIX}{name}={word!r}: give {what}")
    return word


def words(name: str, parse: Callable[[str], object] = str, what: str = "") -> list[str]:
    """Return a list that is separated by commas. `parse` raises ValueError for a word that is not `what`."""
    listed = [word.strip() for word in text(name).split(",") if word.strip()]
    try:
        for word in listed:
            parse(word)
    except ValueError:
        raise SettingError(f"{PREFIX}{name}={','.join(listed)!r}: give {what} separated by commas") from None
    return listed


def check_host(word: str) -> None:
    """Raise ValueError unless Django's ALLOWED_HOSTS takes it: `.example.com` has subdomains too, `*` is all."""
    if word.startswith("["):
        _bracketed(word)
    elif word != "*" and not HOST_PATTERN.fullmatch(word.removeprefix(".")):
        raise ValueError(word)


def pairs(name: str) -> dict[str, str]:
    """Return the `name=value` pairs of a list. The error doesn't show them, as a value may be a secret."""
    listed = [word.partition("=") for word in words(name)]
    if not all(key and equals for key, equals, _ in listed):
        raise SettingError(f"{PREFIX}{name}: give name=value pairs separated by commas")
    return {key: value for key, _, value in listed}


def regions(name: str) -> list[str]:
    names = words(name)
    if not all(REGION_PATTERN.fullmatch(word) for word in names):
        raise SettingError(
            f"{PREFIX}{name}={','.join(names)!r}: a region has up to 63 lower-case letters, digits and hyphens, and "
            "begins with a letter"
        )
    return names


def region(name: str, default: str) -> str:
    names = regions(name) or [default]
    if len(names) != 1:
        raise SettingError(f"{PREFIX}{name}={','.join(names)!r}: give one region")
    return names[0]


def port(word: str, *, least: int = 1) -> int:
    """Return the number of a port. Raises ValueError."""
    if not (word.isascii() and word.isdecimal() and least <= int(word) < 65536):
        raise ValueError(word)
    return int(word)


def listen_address(name: str, default: str) -> tuple[str, int]:
    """Return host and port of `host:port`, where the host may be an IPv6 address in brackets."""
    word = text(name, default)
    try:
        return parse_address(word)
    except ValueError:
        raise SettingError(f"{PREFIX}{name}={word!r}: give host:port, for example {default}") from None


def parse_address(word: str, *, least_port: int = 1) -> tuple[str, int]:
    """Return host and port of `host:port`; without a host, it is 127.0.0.1. Raises ValueError."""
    host, colon, number = word.rpartition(":")
    if host.startswith("["):
        host = _bracketed(host)
    elif not colon or (host and not HOST_PATTERN.fullmatch(host)):
        raise ValueError(word)
    return host or "127.0.0.1", port(number, least=least_port)


def _bracketed(word: str) -> str:
    """Return the IPv6 address in brackets."""
    if not word.endswith("]"):
        raise ValueError(word)
    return str(ipaddress.IPv6Address(word[1:-1]))


def web_url(name: str, default: str) -> str:
    """Return an http or https URL without a slash at its end. The error doesn't show it, as it may have a password."""
    word = text(name, default)
    if not is_web_url(word):
        raise SettingError(f"{PREFIX}{name}: give an http or https URL, for example {default}")
    return word.rstrip("/")


def is_web_url(word: str) -> bool:
    """Whether a text is an http or https URL of a server, which may have a path."""
    try:
        parts = urlsplit(word)
        is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_server and parts.username is None and not (parts.query or parts.fragment)


def store(name: str, default: str = "", *, local: bool = True) -> str:
    """Return the address of files: an object store's or, if it may be `local`, a folder's."""
    address = text(name, default)
    if address and not (local or is_remote(address)):
        raise SettingError(f"{PREFIX}{name}={address!r}: give s3://bucket/folder or gs://bucket/folder")
    if is_remote(address):
        with naming(name):
            check_address(address)
    return address


def authorities(name: str) -> str:
    """Return the path of a file with certificate authorities in PEM, or ""."""
    import ssl  # most commands need none

    path = text(name)
    if path:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except ssl.SSLError:
            raise SettingError(f"{PREFIX}{name}={path!r}: give a file with certificates in PEM") from None
        except OSError as error:
            raise SettingError(f"{PREFIX}{name}={path!r}: {error.strerror}") from None
    return path


def reachable(address: tuple[str, int]) -> tuple[str, int]:
    """Return the address at which this machine reaches a server that listens on `address`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0]), address[1]  # noqa: S104


def url(address: tuple[str, int]) -> str:
    """Return the URL at which this machine reaches a server that listens on `address`."""
    host, number = reachable(address)
    return f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"


def server_url() -> str:
    """Return the URL of the PushHub that commands speak to: that of PUSHHUB_URL, or else of PUSHHUB_HTTP."""
    return web_url("URL", url(listen_address("HTTP", "127.0.0.1:8000")))


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` is out of reach of other machines."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
