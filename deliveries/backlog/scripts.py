"""Calls the Lua verbs: a library of Redis functions of the names in codes.py, the shared files, and each verb's own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis
from django.conf import settings
from redis.exceptions import ResponseError

from deliveries.backlog.codes import lua_names
from deliveries.backlog.records import Item, bell_key, cell_of_key
from pushhub.common.outages import outage_or_raise
from pushhub.common.rediscluster import Cluster, Command
from pushhub.common.redisurls import is_cluster

FOLDER = Path(__file__).parent
#: Each file uses the names of the files before it.
SHARED = ("common", "places", "pump", "record", "register")
#: Each file but these and rules.lua is a verb.
VERBS = sorted({path.stem for path in FOLDER.glob("*.lua")} - {"rules", *SHARED})
#: What other files use of rules.lua, besides its functions that begin with "rules_".
RULES_NUMBERS = ("SLOW_START_LIMIT", "LATENCY_BELOW_MS")
#: Versions and settings of PushHub that use a Redis at the same time have a library each.
LIBRARY_PREFIX, MOST_LIBRARIES = "pushhub_", 4
#: What Redis says of a function that it does not have.
MISSING = "Function not found"

#: Puts cells into a bell, each once.
RING = """
for _, cell in ipairs(ARGV) do
  if not redis.call('LPOS', KEYS[1], cell) then redis.call('LPUSH', KEYS[1], cell) end
end
"""


class Library(NamedTuple):
    """All verbs as a library of Redis functions, whose definitions Redis makes once, not at each call as a script's."""

    digest: str
    text: str

    @property
    def name(self) -> str:
        return f"{LIBRARY_PREFIX}{self.digest}"

    def function(self, verb: str) -> str:
        """Return the name of a verb's function, which no other library may have."""
        return f"{verb}_{self.digest}"


def library() -> Library:
    """Return the library for the settings."""
    return _library(settings.TIME_SCALE, settings.REDIS_MB, settings.CELLS, is_cluster(settings.REDIS_URL))


@cache
def _library(time_scale: float, redis_mb: int, cells: int, on_cluster: bool) -> Library:
    names = lua_names(time_scale=time_scale, budget_bytes=redis_mb * 1_000_000, cells=cells, on_cluster=on_cluster)
    verbs = [f"register('{verb}', function(KEYS, ARGV)\n{lua_file(verb)}\nend)" for verb in VERBS]
    text = "\n".join([names, _rules(), *map(lua_file, SHARED), *verbs])
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]
    return Library(digest, f"#!lua name={LIBRARY_PREFIX}{digest}\nlocal DIGEST = '{digest}'\n{text}")


def lua_file(name: str) -> str:
    return (FOLDER / f"{name}.lua").read_text(encoding="utf-8")


def _rules() -> str:
    """Return rules.lua as one statement. Lua allows 200 local names at a time, of which these are the most."""
    text = lua_file("rules")
    names = ", ".join([*RULES_NUMBERS, *re.findall(r"^local function (rules_\w+)", text, flags=re.MULTILINE)])
    return f"local {names} = (function()\n{text}\nreturn {names}\nend)()"


def load_library(client: redis.Redis) -> None:
    """Give a Redis the library, and take the others away if they are many: who still calls one gives it again."""
    own = library()
    client.function_load(own.text, replace=True)
    # Clients differ in the shape of this reply.
    names = set(re.findall(rf"{LIBRARY_PREFIX}\w+", str(client.function_list(f"{LIBRARY_PREFIX}*"))))
    if len(names) > MOST_LIBRARIES:
        for name in names - {own.name}:
            with suppress(ResponseError):  # another process has just done it
                client.function_delete(name)


def lacks_library(reply: Any) -> bool:
    """Return whether a reply says that Redis lacks the library: the call has done nothing."""
    return isinstance(reply, ResponseError) and MISSING in str(reply)


class Clients(NamedTuple):
    """The clients of a backlog: for the keys of cells, and for what all of them share. Without a Cluster, it is one."""

    cells: redis.Redis
    shared: redis.Redis


#: A verb with the keys and the arguments of a call.
Call = tuple["Verb", Sequence[str], Sequence[Any]]


class Verb:
    """A function of the library, bound to its clients. It is called with keys of one cell."""

    def __init__(self, clients: Clients, name: str) -> None:
        self._clients = clients
        self.function = library().function(name)

    def __call__(self, *, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        return call_each(self._clients, [(self, keys, args)])[0]


class Scripts:
    """The verbs by their names, bound to their clients. The library is loaded where Redis lacks it."""

    def __init__(self, clients: Clients) -> None:
        vars(self).update({name: Verb(clients, name) for name in VERBS})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Verb: ...


def call_all(clients: Clients, verb: Verb, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
    """Return the replies of a verb's calls, each with keys and arguments, made in one round trip."""
    return call_each(clients, [(verb, keys, args) for keys, args in calls])


def call_each(clients: Clients, calls: Sequence[Call], *, together: int | None = None) -> list[Any]:
    """Do as `call_all` with calls that have a verb each. Raises the first error."""
    replies = try_each(clients, calls, together=together)
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def try_each(clients: Clients, calls: Sequence[Call], *, together: int | None = None) -> list[Any]:
    """Do as `call_each`, but return the errors of calls to nodes of a Cluster in place of their replies.

    A single Redis gets `together` calls in a round trip, if that is given.
    """
    commands = [("FCALL", verb.function, len(keys), *keys, *args) for verb, keys, args in calls]
    if isinstance(clients.cells, Cluster):
        replies = _send_to_nodes(clients.cells, calls, commands)
    else:
        replies = _send_together(clients.cells, commands, together=together or len(commands))
    return replies if settings.CELLS == 1 else _rung(clients.shared, calls, replies)


def answered(asked: Iterable[Item], replies: Iterable[Any]) -> Iterator[tuple[Item, Any]]:
    """Yield what has a reply, with it. Raises an error that is no outage."""
    for item, reply in zip(asked, replies, strict=False):
        if isinstance(reply, Exception):
            outage_or_raise(reply)
        else:
            yield item, reply


def _send_together(client: redis.Redis, commands: Sequence[Sequence[Any]], *, together: int) -> list[Any]:
    """Send commands, `together` in a round trip, and raise the first error.

    redis-py's own pipeline takes twice the time for a call or two.
    """
    connection: Any = client.connection_pool.get_connection()
    try:
        replies: list[Any] = connection.retry.call_with_retry(
            lambda: _send(connection, commands, together=together), lambda _: connection.disconnect()
        )
    finally:
        client.connection_pool.release(connection)
    if any(map(lacks_library, replies)):
        load_library(client)
    for index, reply in enumerate(replies):
        if lacks_library(reply):
            replies[index] = client.fcall(commands[index][1], *commands[index][2:])
        elif isinstance(reply, Exception):
            raise reply
    return replies


def _send_to_nodes(cluster: Any, calls: Sequence[Call], commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands to the nodes of their cells. Return the errors of those that fail in place of their replies."""
    sent = [Command(keys[-1], words) for (_, keys, _), words in zip(calls, commands, strict=True)]
    replies: list[Any] = cluster.send_each(sent)
    if lacking := [index for index, reply in enumerate(replies) if lacks_library(reply)]:
        for node in cluster.primaries().values():
            with suppress(redis.RedisError):  # the calls to this node fail, too
                load_library(node)
        for index, reply in zip(lacking, cluster.send_each([sent[index] for index in lacking]), strict=True):
            replies[index] = reply
    return replies


def _rung(shared: redis.Redis, calls: Sequence[Call], replies: Sequence[Any]) -> list[Any]:
    """Ring the bells that the replies ask for, and return the replies of the verbs."""
    cells: dict[str, list[int]] = {}
    own: list[Any] = []
    for (_, keys, _), reply in zip(calls, replies, strict=True):
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
