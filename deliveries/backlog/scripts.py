"""Loads the Lua verbs: each script is rules.lua, common.lua and its own file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

FOLDER = Path(__file__).parent
VERBS = (
    "offer",
    "fetch",
    "settle",
    "beat",
    "configure",
    "forget",
    "leave",
    "held",
    "repair",
    "lease",
    "extend",
    "leased",
    "release",
    "unlease",
    "acknowledge",
)


@cache
def source(verb: str) -> str:
    """The complete text of a verb's script."""
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb}")
    return "\n".join((FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in ("rules", "common", verb))


class Scripts:
    """The verbs, bound to one client; a wiped script cache loads itself again."""

    def __init__(self, client: redis.Redis) -> None:
        self.offer = Script(client, source("offer"))
        self.fetch = Script(client, source("fetch"))
        self.settle = Script(client, source("settle"))
        self.beat = Script(client, source("beat"))
        self.configure = Script(client, source("configure"))
        self.forget = Script(client, source("forget"))
        self.leave = Script(client, source("leave"))
        self.held = Script(client, source("held"))
        self.repair = Script(client, source("repair"))
        self.lease = Script(client, source("lease"))
        self.extend = Script(client, source("extend"))
        self.leased = Script(client, source("leased"))
        self.release = Script(client, source("release"))
        self.unlease = Script(client, source("unlease"))
        self.acknowledge = Script(client, source("acknowledge"))


def call_all(
    client: redis.Redis,
    script: Script,
    calls: Sequence[tuple[str, Sequence[Any]]],
    *,
    then: Sequence[Sequence[Any]] = (),
) -> list[Any]:
    """The replies of calls, each a key and arguments, made in one round trip; `then` are plain commands after them.

    A pipeline of redis-py's own asks whether Redis has the script first, each time, which is a round trip more.
    """
    pipe = client.pipeline(transaction=False)
    for key, args in calls:
        pipe.evalsha(script.sha, 1, key, *args)
    for command in then:
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    replies: list[Any] = pipe.execute(raise_on_error=False)
    for index, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            key, args = calls[index]
            replies[index] = script(keys=[key], args=args)
        elif isinstance(reply, Exception):
            raise reply
    return replies[: len(calls)]
