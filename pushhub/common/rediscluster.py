"""A Redis Cluster, by redis-py's client, and commands that go to all of its nodes at once.

redis-py's client would follow a script to a node that gets its slot just now, key by key: there, the script would miss
the keys that have not arrived yet. It also waits for a node that is away, again and again, while the others wait.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import redis
from redis import cluster
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, MovedError, RedisClusterException, ResponseError, TryAgainError
from redis.retry import Retry

# redis-py's client of a Cluster has hardly any types.
ClusterNode: Any = cluster.ClusterNode
RedisCluster: Any = cluster.RedisCluster

#: A node's silence for longer than this is an outage of the node. Workers renew leases of 3.5 s in the other cells.
NODE_SECONDS = 2.0
#: After a node did not answer, calls for it fail at once for this long.
AWAY_SECONDS = 1.0
#: How often commands are sent again because of where their slots are, and the pause if a slot is on its way.
ROUNDS, MOVING_SECONDS = 8, 0.03
#: What a script says that touches a key which has left with its slot, in lower case: Valkey's sentence begins with it.
MOVING = "attempted to access a non local key"


@dataclass(frozen=True, slots=True)
class Command:
    """A command for the node that has a key's slot."""

    key: str
    words: Sequence[Any]


class Cluster:
    """redis-py's client, which connects when it is used first. All its errors are redis.RedisError."""

    def __init__(self, nodes: Sequence[tuple[str, int]], **options: Any) -> None:
        self._nodes = nodes
        self._options = options
        #: Until when calls for a node that did not answer fail at once (time.monotonic), by its name.
        self._away: dict[str, float] = {}

    @cached_property
    def _client(self) -> Any:
        with _redis_errors():
            return _Client(
                startup_nodes=[ClusterNode(*node) for node in self._nodes],
                require_full_coverage=False,
                retry=Retry(NoBackoff(), 1),
                **self._options,
            )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if "_client" in self.__dict__:
            self._client.close()

    def primaries(self) -> dict[str, redis.Redis]:
        """Return a client for each primary, by its address."""
        with _redis_errors():
            return {node.name: self._client.get_redis_connection(node) for node in self._client.get_primaries()}

    def send_each(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands to their nodes, to all at once. Return the replies and, for those that failed, their errors.

        Commands of one node run in their order. A script never runs while its slot moves.
        """
        replies: list[Any] = [None] * len(commands)
        left = list(range(len(commands)))
        for number in range(ROUNDS):
            # The nodes may disagree for a moment about who has a slot.
            if number > 1 or any(isinstance(replies[index], TryAgainError) for index in left):
                time.sleep(MOVING_SECONDS)
            failed = self._send(commands, left, replies)
            left = [index for index in left if self._is_to_repeat(commands[index].key, replies[index], failed)]
            if not left:
                break
        return [TryAgainError(str(reply)) if isinstance(reply, MovedError) else reply for reply in replies]

    def _send(self, commands: Sequence[Command], indices: Sequence[int], replies: list[Any]) -> set[str]:
        """Send these commands and take their replies. Return the names of nodes that failed just now."""
        by_node: dict[Any, list[int]] = defaultdict(list)
        failed: set[str] = set()
        for index in indices:
            try:
                by_node[self._node_of(commands[index].key)].append(index)
            except redis.RedisError as error:
                replies[index] = error
        with ExitStack() as stack:
            sent: list[tuple[Any, list[int], Any]] = []
            for node, own in by_node.items():
                with self._fail_apart(node, own, replies, failed):
                    connection = stack.enter_context(self._connection(node))
                    connection.send_packed_command(connection.pack_commands([commands[index].words for index in own]))
                    sent.append((node, own, connection))
            for node, own, connection in sent:
                with self._fail_apart(node, own, replies, failed):
                    for index in own:
                        replies[index] = _read_reply(connection)
                    connection.is_read = True
                    self._away.pop(node.name, None)
        return failed

    def _node_of(self, key: str) -> Any:
        with _redis_errors():
            return self._client.nodes_manager.get_node_from_slot(self._client.keyslot(key))

    @contextmanager
    def _connection(self, node: Any) -> Iterator[Any]:
        """Yield a connection to a node. It is closed afterwards if its replies were not read."""
        now, until = time.monotonic(), self._away.get(node.name)
        if until is not None:
            if now < until:
                raise _AwayError(f"{node.name} did not answer a moment ago")
            self._away[node.name] = now + NODE_SECONDS + AWAY_SECONDS  # one caller tries, the others don't wait
        pool = self._client.get_redis_connection(node).connection_pool
        connection: Any = pool.get_connection()
        connection.is_read = False
        try:
            yield connection
        finally:
            if not connection.is_read:
                connection.disconnect()
            pool.release(connection)

    @contextmanager
    def _fail_apart(self, node: Any, indices: Sequence[int], replies: list[Any], failed: set[str]) -> Iterator[None]:
        """Give the commands of a node its error, if it is away, and find out whether another one has its slots."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            for index in indices:
                replies[index] = error if isinstance(error, redis.RedisError) else redis.ConnectionError(str(error))
            if not isinstance(error, _AwayError):
                self._away[node.name] = time.monotonic() + AWAY_SECONDS
                failed.add(node.name)
                self._look_for_nodes(node.name)

    def _look_for_nodes(self, failed: str | None = None) -> None:
        with suppress(redis.RedisError), _redis_errors():
            self._client.nodes_manager.initialize(last_failed_node_name=failed)

    def _is_to_repeat(self, key: str, reply: Any, failed: set[str]) -> bool:
        if isinstance(reply, MovedError):
            self._client.nodes_manager.move_slot(reply)
            return True
        if isinstance(reply, ClusterDownError):
            self._look_for_nodes()
            return False
        if isinstance(reply, redis.ConnectionError | redis.TimeoutError):
            with suppress(redis.RedisError):
                name = self._node_of(key).name
                return name not in failed and time.monotonic() >= self._away.get(name, 0.0)
            return False
        return isinstance(reply, TryAgainError)


class _AwayError(redis.ConnectionError):
    """A node did not answer a moment ago."""


class _Client(RedisCluster):  # type: ignore[misc]
    """redis-py's client, with errors that its single client might raise."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        with _redis_errors():
            return super().execute_command(*args, **kwargs)

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> Any:
        pipeline: Any = super().pipeline(transaction, shard_hint)
        pipeline.execute = _redis_errors()(pipeline.execute)
        return pipeline


@contextmanager
def _redis_errors() -> Iterator[None]:
    """Raise what redis-py says of a Cluster as a whole as a redis.ConnectionError: nobody could be asked."""
    try:
        yield
    except RedisClusterException as error:
        raise redis.ConnectionError(str(error)) from error


def _read_reply(connection: Any) -> Any:
    """Return a reply, or its error. A slot on its way to another node is one that is busy for now."""
    try:
        return connection.read_response()
    except MovedError as error:
        return error
    except ResponseError as error:
        is_moving = isinstance(error, AskError) or MOVING in str(error).lower()
        return TryAgainError(str(error)) if is_moving else error
