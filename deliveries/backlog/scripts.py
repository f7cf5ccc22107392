"""Loads the Lua verbs. Each script is the names of codes.py, the shared files and the verb's own file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from redis.commands.core import Script
from redis.exceptions import NoScriptError

from deliveries.backlog.codes import lua_names

FOLDER = Path(__file__).parent
#: Each file uses the functions of the files before it.
SHARED = ("rules", "common", "pump", "record")
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
    return "\n".join([names, *shared, "return (function()", own, "end)()"])


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

    redis-py's own pipeline asks each time whether Redis has the script, which is one more round trip.
    """
    pipe = client.pipeline(transaction=False)
    for script, keys, args in calls:
        pipe.evalsha(script.sha, len(keys), *keys, *args)
    for command in then:
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    replies: list[Any] = pipe.execute(raise_on_error=False)
    for index, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            script, keys, args = calls[index]
            replies[index] = script(keys=keys, args=args)
        elif isinstance(reply, Exception):
            raise reply
    return replies[: len(calls)]
