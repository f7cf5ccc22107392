"""Loads the Lua verbs. Each script has what its verb uses of codes.py and the shared files, and the verb's own file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from redis.commands.core import Script
from redis.exceptions import NoScriptError, ResponseError

from deliveries.backlog.codes import lua_names

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


def source(verb: str) -> str:
    """Return the complete text of a verb's script."""
    return _source(verb, settings.TIME_SCALE, settings.REDIS_MB)


@cache
def _source(verb: str, time_scale: float, redis_mb: int) -> str:
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb}")
    *shared, own = [(FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in (*SHARED, verb)]
    names = lua_names(time_scale=time_scale, budget_bytes=redis_mb * 1_000_000)
    # Lua allows 200 local names in a function. In a function of its own, the verb has as many again.
    return "\n".join([*_definitions_used("\n".join([names, *shared]), own), "return (function()", own, "end)()"])


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
Call = tuple[Script, Sequence[str], Sequence[Any]]


class Scripts:
    """The verbs, bound to one client. Scripts that Redis has lost are loaded again."""

    def __init__(self, client: redis.Redis) -> None:
        self.offer = Script(client, source("offer"))
        self.page = Script(client, source("page"))
        self.fetch = Script(client, source("fetch"))
        self.settle = Script(client, source("settle"))
        self.beat = Script(client, source("beat"))
        self.configure = Script(client, source("configure"))
        self.forget = Script(client, source("forget"))
        self.leave = Script(client, source("leave"))
        self.held = Script(client, source("held"))
        self.tokens = Script(client, source("tokens"))
        self.repair = Script(client, source("repair"))
        self.lease = Script(client, source("lease"))
        self.extend = Script(client, source("extend"))
        self.leased = Script(client, source("leased"))
        self.release = Script(client, source("release"))
        self.unlease = Script(client, source("unlease"))
        self.handover = Script(client, source("handover"))
        self.acknowledge = Script(client, source("acknowledge"))
        self.putback = Script(client, source("putback"))
        self.announce = Script(client, source("announce"))
        self.take = Script(client, source("take"))


def call_all(
    client: redis.Redis,
    script: Script,
    calls: Sequence[tuple[Sequence[str], Sequence[Any]]],
    *,
    then: Sequence[Sequence[Any]] = (),
) -> list[Any]:
    """Return the replies of a script's calls, each with keys and arguments, made in one round trip.

    Commands in `then` follow.
    """
    return call_each(client, [(script, keys, args) for keys, args in calls], then=then)


def call_each(client: redis.Redis, calls: Sequence[Call], *, then: Sequence[Sequence[Any]] = ()) -> list[Any]:
    """Do as `call_all` with calls that have a script each.

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
            replies[index] = script(keys=keys, args=args)
        elif isinstance(reply, Exception):
            raise reply
    return replies[: len(calls)]


def _send(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands at once and return their replies, of which errors are not raised."""
    connection.send_packed_command(connection.pack_commands(commands))
    return [_read_reply(connection) for _ in commands]


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
