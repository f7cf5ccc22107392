"""Loads the Lua verbs. Each script has what its verb uses of codes.py and the shared files, and the verb's own file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from redis.exceptions import NoScriptError, ResponseError

from deliveries.backlog.codes import lua_names
from deliveries.backlog.records import bell_key, cell_of_key

FOLDER = Path(__file__).parent
#: Each file uses the functions of the files before it.
SHARED = ("rules", "common", "places", "pump", "record")
VERBS = (
    "offer",
    "page",
    "fetch",
    "settle",
    "beat",
    "configure",
    "forget",
    "leave",
    "held",
    "tokens",
    "repair",
    "lease",
    "extend",
    "leased",
    "release",
    "unlease",
    "handover",
    "acknowledge",
    "putback",
    "announce",
    "take",
)


#: Puts cells into a bell, each once.
RING = """
for _, cell in ipairs(ARGV) do
  if not redis.call('LPOS', KEYS[1], cell) then redis.call('LPUSH', KEYS[1], cell) end
end
"""
#: The end of a script: a cell among others can't ring, so the reply has the regions whose bells are to be rung.
END, END_OF_ONE = "return {reply() or false, rung_regions()}", "return reply()"


def source(verb: str) -> str:
    """Return the complete text of a verb's script."""
    return _source(verb, settings.TIME_SCALE, settings.REDIS_MB, settings.CELLS)


@cache
def _source(verb: str, time_scale: float, redis_mb: int, cells: int) -> str:
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb}")
    *shared, own = [(FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in (*SHARED, verb)]
    names = lua_names(time_scale=time_scale, budget_bytes=redis_mb * 1_000_000, cells=cells)
    end = END_OF_ONE if cells == 1 else END
    # Lua allows 200 local names in a function. In a function of its own, the verb has as many again.
    verb_text = "\n".join(["local function reply()", own, "end", end])
    return "\n".join([*_definitions_used("\n".join([names, *shared]), verb_text), verb_text])


def _definitions_used(shared: str, own: str) -> list[str]:
    """Return those definitions of `shared` whose names `own` has, directly or by way of other definitions.

    Redis makes every definition of a script anew at each call: all of them take 65 µs, which is most of a small call.
    """
    start, *definitions = re.split(r"^local ", re.sub(r"^ *--.*\n", "", shared, flags=re.MULTILINE), flags=re.MULTILINE)
    if start.strip():
        raise ValueError(f"not a definition: {start}")
    words = set(re.findall(r"\w+", own))
    used: list[str] = []
    for definition in reversed(definitions):
        names = re.match(r"(?:function )?([\w, ]+)", definition)
        if names is None or not words.isdisjoint(re.findall(r"\w+", names[1])):
            words.update(re.findall(r"\w+", definition))
            used.insert(0, f"local {definition}")
    return used


#: A script with the keys and the arguments of a call.
Call = tuple["Verb", Sequence[str], Sequence[Any]]


class Verb:
    """A script, bound to one client. It is called with keys of one cell."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self._client = client
        self.text = source(name)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, *, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        return call_each(self._client, [(self, keys, args)])[0]


class Scripts:
    """The verbs, bound to one client. Scripts that Redis has lost are loaded again."""

    def __init__(self, client: redis.Redis) -> None:
        self.offer = Verb(client, "offer")
        self.page = Verb(client, "page")
        self.fetch = Verb(client, "fetch")
        self.settle = Verb(client, "settle")
        self.beat = Verb(client, "beat")
        self.configure = Verb(client, "configure")
        self.forget = Verb(client, "forget")
        self.leave = Verb(client, "leave")
        self.held = Verb(client, "held")
        self.tokens = Verb(client, "tokens")
        self.repair = Verb(client, "repair")
        self.lease = Verb(client, "lease")
        self.extend = Verb(client, "extend")
        self.leased = Verb(client, "leased")
        self.release = Verb(client, "release")
        self.unlease = Verb(client, "unlease")
        self.handover = Verb(client, "handover")
        self.acknowledge = Verb(client, "acknowledge")
        self.putback = Verb(client, "putback")
        self.announce = Verb(client, "announce")
        self.take = Verb(client, "take")


def call_all(client: redis.Redis, script: Verb, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
    """Return the replies of a script's calls, each with keys and arguments, made in one round trip."""
    return call_each(client, [(script, keys, args) for keys, args in calls])


def call_each(client: redis.Redis, calls: Sequence[Call], *, then: Sequence[Sequence[Any]] = ()) -> list[Any]:
    """Do as `call_all` with calls that have a script each. Commands in `then` follow.

    redis-py's own pipeline asks each time whether Redis has the script, which is one more round trip, and takes twice
    the time for a call or two.
    """
    commands = [("EVALSHA", script.sha, len(keys), *keys, *args) for script, keys, args in calls]
    connection: Any = client.connection_pool.get_connection()
    try:
        replies: list[Any] = connection.retry.call_with_retry(
            lambda: _send(connection, [*commands, *then]), lambda _: connection.disconnect()
        )
    finally:
        client.connection_pool.release(connection)
    for index, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            script, keys, args = calls[index]
            replies[index] = client.eval(script.text, len(keys), *keys, *args)
        elif isinstance(reply, Exception):
            raise reply
    replies = replies[: len(calls)]
    return replies if settings.CELLS == 1 else _rung(client, calls, replies)


def _rung(client: redis.Redis, calls: Sequence[Call], replies: Sequence[Any]) -> list[Any]:
    """Ring the bells that the replies ask for, and return the replies of the verbs."""
    cells: dict[str, list[int]] = {}
    for (_, keys, _), (_, regions) in zip(calls, replies, strict=True):
        for region in regions:
            cells.setdefault(region.decode(), []).append(cell_of_key(keys[-1]))
    for region, rung in cells.items():
        ring(client, region, rung)
    own = [reply for reply, _ in replies]
    for reply in own:
        if isinstance(reply, Exception):
            raise reply
    return own


def ring(client: redis.Redis, region: str, cells: Sequence[int]) -> None:
    """Have a worker of a region look at cells. Those that wait already keep their turns."""
    client.eval(RING, 1, bell_key(region), *map(str, cells))


def _send(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once and return their replies, of which errors are not raised."""
    connection.send_packed_command(connection.pack_commands(commands))
    return [_read_reply(connection) for _ in commands]


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
