"""A Redis Cluster of embedded servers on loopback: it fails over, moves slots, grows and shrinks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from deliveries.backlog.connection import client_of
from tests.ports import free_port, wait_for
from tests.redisserver import RedisServer

SLOTS = 16384
#: The silence after which the others replace a node, and what keeps the rest of the slots in use meanwhile.
OPTIONS = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"]


@dataclass
class Node:
    """A server of the Cluster, and a client that reaches it past the Cluster."""

    server: RedisServer
    port: int
    #: The port by which the other nodes and clients reach it.
    announced: int
    bus: int
    client: redis.Redis
    id: str = ""

    @property
    def is_alive(self) -> bool:
        return self.server.is_running

    def ask(self, *words: str | int) -> Any:
        reply = self.client.execute_command("CLUSTER", *words)
        return reply.decode() if isinstance(reply, bytes) else reply


@dataclass
class RedisCluster:
    folder: Path
    stack: ExitStack
    #: Returns the port by which a node of this port is reached.
    announce: Callable[[int], int]
    nodes: list[Node] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The URL of all nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.announced}" for node in self.nodes)

    def start_node(self) -> Node:
        """Start a node, and have it meet the others."""
        port, bus = free_port(), free_port()
        announced = self.announce(port)
        (own := self.folder / str(port)).mkdir()
        words = ["--bind", "127.0.0.1", "--port", str(port), "--cluster-port", str(bus)]
        words += ["--cluster-announce-port", str(announced), "--cluster-announce-bus-port", str(bus)]
        server = self.stack.enter_context(RedisServer(own, *words, *OPTIONS, "--repl-diskless-sync-delay", "0"))
        client = self.stack.enter_context(redis.Redis(unix_socket_path=server.url.removeprefix("unix://")))
        node = Node(server, port, announced, bus, client)
        node.id = node.ask("MYID")
        for other in self.living()[:1]:
            node.ask("MEET", "127.0.0.1", other.port, other.bus)
        self.nodes.append(node)
        wait_for(lambda: self._is_known(node), what="the meeting")
        return node

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.is_alive]

    def _is_known(self, node: Node) -> bool:
        """Return whether a node and all others know each other."""
        ids = {each.id for each in self.living()}
        return ids <= self.known_to(node) and all(node.id in self.known_to(each) for each in self.living())

    def known_to(self, node: Node) -> set[str]:
        """Return the ids of the nodes that a node has met."""
        return {each["node_id"] for each in node.client.cluster("NODES").values() if "handshake" not in each["flags"]}

    def owner(self, slot: int) -> Node | None:
        """Return the node that serves a slot; None while none does."""
        return next((node for node in self.living() if self._serves(node, slot)), None)

    def _serves(self, node: Node, slot: int) -> bool:
        """Return whether a node is the primary of a slot, as it says itself."""
        slots = node.client.execute_command("CLUSTER SLOTS")
        return any(first <= slot <= last and primary[2].decode() == node.id for first, last, primary, *_ in slots)

    def is_whole(self) -> bool:
        """Return whether all slots are served, and all replicas follow their primaries."""
        return all(
            node.client.cluster("INFO")["cluster_state"] == "ok"
            and node.client.cluster("INFO")["cluster_slots_ok"] == str(SLOTS)
            and node.client.info("replication").get("master_link_status", "up") == "up"
            for node in self.living()
        )

    def follow(self, replica: Node, primary: Node) -> None:
        """Make a node the replica of another."""
        wait_for(lambda: primary.id in self.known_to(replica), what="the primary's address")
        replica.ask("REPLICATE", primary.id)

    def move_slot(self, slot: int, target: Node, *, between: Any = lambda: None) -> None:
        """Move a slot while it is in use, as `redis-cli --cluster reshard` does; `between` is called half way."""
        source = self.owner(slot)
        assert source is not None
        target.ask("SETSLOT", slot, "IMPORTING", source.id)
        source.ask("SETSLOT", slot, "MIGRATING", target.id)
        between()
        while keys := source.ask("GETKEYSINSLOT", slot, 10):
            source.client.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *self.living()):
            with suppress(redis.ResponseError):  # a replica
                node.ask("SETSLOT", slot, "NODE", target.id)


@contextmanager
def redis_cluster(
    folder: Path,
    *,
    primaries: int = 3,
    has_replicas: bool = True,
    announce: Callable[[int], int] = lambda port: port,
) -> Iterator[RedisCluster]:
    """Run primaries, which share the slots, and a replica of each."""
    with ExitStack() as stack:
        cluster = RedisCluster(folder, stack, announce)
        nodes = [cluster.start_node() for _ in range(primaries * (2 if has_replicas else 1))]
        for number, primary in enumerate(nodes[:primaries]):
            primary.ask("ADDSLOTSRANGE", number * SLOTS // primaries, (number + 1) * SLOTS // primaries - 1)
        for primary, replica in zip(nodes, nodes[primaries:], strict=False):
            cluster.follow(replica, primary)
        wait_for(cluster.is_whole, what="the Cluster")
        yield cluster


@contextmanager
def cluster_in_use(
    folder: Path, broker_url: str, cells: int, *, settings: Any, monkeypatch: Any
) -> Iterator[RedisCluster]:
    """Let this process, and those that a test starts, use a Cluster. What is beside it is in another Redis."""
    with redis_cluster(folder) as cluster:
        for name, value in (("REDIS_URL", cluster.url), ("BROKER_URL", broker_url), ("CELLS", cells)):
            setattr(settings, name, value)
            monkeypatch.setenv(f"PUSHHUB_{name}", str(value))
        yield cluster
        client_of(cluster.url).close()
