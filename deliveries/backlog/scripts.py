"""Loads the Lua verbs. Each script has what its verb uses of codes.py and the shared files, and the verb's own file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import redis
from django.conf import settings
from redis.exceptions import NoScriptError, ResponseError

from deliveries.backlog.codes import lua_names
from deliveries.backlog.records import Item, bell_key, cell_of_key
from pushhub.common.outages import outage_or_raise
from pushhub.common.rediscluster import Cluster, Command
from pushhub.common.redisurls import is_cluster

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
    "due",
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
#: The same on a Cluster, where a cell may have come from another server.
END_ON_CLUSTER = f"claim_cell()\n{END}"


def source(verb: str) -> str:
    """Return the complete text of a verb's script."""
    return _source(verb, settings.TIME_SCALE, settings.REDIS_MB, settings.CELLS, is_cluster(settings.REDIS_URL))


@cache
def _source(verb: str, time_scale: float, redis_mb: int, cells: int, on_cluster: bool) -> str:
    if verb not in VERBS:
        raise ValueError(f"no such verb: {verb}")
    *shared, own = [(FOLDER / f"{part}.lua").read_text(encoding="utf-8") for part in (*SHARED, verb)]
    names = lua_names(time_scale=time_scale, budget_bytes=redis_mb * 1_000_000, cells=cells)
    end = END_OF_ONE if cells == 1 else END_ON_CLUSTER if on_cluster else END
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


class Clients(NamedTuple):
    """The clients of a backlog: for the keys of cells, and for what all of them share. Without a Cluster, it is one."""

    cells: redis.Redis
    shared: redis.Redis


#: A script with the keys and the arguments of a call.
Call = tuple["Verb", Sequence[str], Sequence[Any]]


class Verb:
    """A script, bound to its clients. It is called with keys of one cell."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self.text = source(name)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, *, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        return call_each(self._clients, [(self, keys, args)])[0]


class Scripts:
    """The verbs, bound to their clients. Scripts that Redis has lost are loaded again."""

    def __init__(self, clients: Clients) -> None:
        self.offer = Verb(clients, "offer")
        self.page = Verb(clients, "page")
        self.fetch = Verb(clients, "fetch")
        self.settle = Verb(clients, "settle")
        self.beat = Verb(clients, "beat")
        self.configure = Verb(clients, "configure")
        self.forget = Verb(clients, "forget")
        self.leave = Verb(clients, "leave")
        self.held = Verb(clients, "held")
        self.tokens = Verb(clients, "tokens")
        self.repair = Verb(clients, "repair")
        self.lease = Verb(clients, "lease")
        self.due = Verb(clients, "due")
        self.extend = Verb(clients, "extend")
        self.leased = Verb(clients, "leased")
        self.release = Verb(clients, "release")
        self.unlease = Verb(clients, "unlease")
        self.handover = Verb(clients, "handover")
        self.acknowledge = Verb(clients, "acknowledge")
        self.putback = Verb(clients, "putback")
        self.announce = Verb(clients, "announce")
        self.take = Verb(clients, "take")


def call_all(clients: Clients, script: Verb, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
    """Return the replies of a script's calls, each with keys and arguments, made in one round trip."""
    return call_each(clients, [(script, keys, args) for keys, args in calls])


def call_each(
    clients: Clients, calls: Sequence[Call], *, then: Sequence[Sequence[Any]] = (), together: int | None = None
) -> list[Any]:
    """Do as `call_all` with calls that have a script each. Commands in `then` follow. Raises the first error."""
    replies = try_each(clients, calls, then=then, together=together)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def try_each(
    clients: Clients, calls: Sequence[Call], *, then: Sequence[Sequence[Any]] = (), together: int | None = None
) -> list[Any]:
    """Do as `call_each`, but return the errors of calls to nodes of a Cluster in place of their replies.

    A single Redis gets `together` commands in a round trip, if that is given.
    """
    commands = [*(("EVALSHA", script.sha, len(keys), *keys, *args) for script, keys, args in calls), *then]
    if isinstance(clients.cells, Cluster):
        replies = _send_to_nodes(clients.cells, calls, commands)
    else:
        replies = _send_together(clients.cells, calls, commands, together=together or len(commands))
    return replies[: len(calls)] if settings.CELLS == 1 else _rung(clients.shared, calls, replies)


def answered(asked: Iterable[Item], replies: Iterable[Any]) -> Iterator[tuple[Item, Any]]:
    """Yield what has a reply, with it. Raises an error that is no outage."""
    for item, reply in zip(asked, replies, strict=False):
        if isinstance(reply, Exception):
            outage_or_raise(reply)
        else:
            yield item, reply


def _send_together(
    client: redis.Redis, calls: Sequence[Call], commands: Sequence[Sequence[Any]], *, together: int
) -> list[Any]:
    """Send commands, `together` in a round trip, and raise the first error.

    redis-py's own pipeline asks each time whether Redis has the script, which is one more round trip, and takes twice
    the time for a call or two.
    """
    connection: Any = client.connection_pool.get_connection()
    try:
        replies: list[Any] = connection.retry.call_with_retry(
            lambda: _send(connection, commands, together=together), lambda _: connection.disconnect()
        )
    finally:
        client.connection_pool.release(connection)
    for index, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            script, keys, args = calls[index]
            replies[index] = client.eval(script.text, len(keys), *keys, *args)
        elif isinstance(reply, Exception):
            raise reply
    return replies


def _send_to_nodes(cluster: Any, calls: Sequence[Call], commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands to the nodes of their cells. An error of one that follows the calls is that of its cell's calls."""
    sent = [
        Command(keys[-1], words, ("EVAL", script.text, *words[2:]))
        for (script, keys, _), words in zip(calls, commands, strict=False)
    ]
    after = [Command(words[1], words) for words in commands[len(calls) :]]
    replies = cluster.send_each([*sent, *after])
    errors = {
        cell_of_key(command.key): reply
        for command, reply in zip(after, replies[len(calls) :], strict=True)
        if isinstance(reply, Exception)
    }
    return [errors.get(cell_of_key(command.key), reply) for command, reply in zip(sent, replies, strict=False)]


def _rung(shared: redis.Redis, calls: Sequence[Call], replies: Sequence[Any]) -> list[Any]:
    """Ring the bells that the replies ask for, and return the replies of the verbs."""
    cells: dict[str, list[int]] = {}
    own: list[Any] = []
    for (_, keys, _), reply in zip(calls, replies, strict=False):
        if isinstance(reply, Exception):
            own.append(reply)
            continue
        of_verb, regions = reply
        own.append(of_verb)
        for region in regions:
            cells.setdefault(region.decode(), []).append(cell_of_key(keys[-1]))
    for region, rung in cells.items():
        ring(shared, region, rung)
    return own


def ring(shared: redis.Redis, region: str, cells: Sequence[int]) -> None:
    """Have a worker of a region look at cells. Those that wait already keep their turns."""
    shared.eval(RING, 1, bell_key(region), *map(str, cells))


def _send(connection: Any, commands: Sequence[Sequence[Any]], *, together: int) -> list[Any]:
    """Send commands and return their replies, of which errors are not raised."""
    replies: list[Any] = []
    while part := commands[len(replies) : len(replies) + together]:
        connection.send_packed_command(connection.pack_commands(part))
        replies += [_read_reply(connection) for _ in part]
    return replies


def _read_reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
