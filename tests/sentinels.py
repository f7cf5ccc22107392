"""Redis Sentinels, a primary and its replica."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import redis

from pushhub.runtime import embedded
from pushhub.runtime.processes import answers_redis
from tests.ports import free_port, wait_for
from tests.redisserver import RedisServer


@dataclass(frozen=True)
class Group:
    """A primary, its replica, and three Sentinels that watch them; a fourth one of the URL is away."""

    servers: list[RedisServer]
    ports: list[int]
    sentinels: list[int]
    url: str

    def primary(self) -> int:
        """Return the port that a Sentinel names, or 0."""
        with suppress(redis.RedisError), redis.Redis(port=self.sentinels[0]) as client:
            return int(client.sentinel_get_master_addr_by_name("main")[1])
        return 0

    def is_complete(self) -> bool:
        """Whether each Sentinel knows the replica and the other Sentinels, so that they can promote it."""
        for port in self.sentinels:
            with redis.Redis(port=port) as client:
                state = client.sentinel_master("main")
            if (state["num-slaves"], state["num-other-sentinels"]) != (1, 2):
                return False
        with redis.Redis.from_url(self.servers[1].url, password="secret") as client:
            return client.info("replication")["master_link_status"] == "up"


@contextmanager
def sentinel(folder: Path, port: int, *lines: str, password: str = "") -> Iterator[None]:
    """Run a Sentinel that listens on `port`, with further lines of its configuration."""
    file = folder / f"sentinel-{port}.conf"
    own = [f"port {port}", "bind 127.0.0.1", f"dir {folder}", f"logfile {folder}/sentinel-{port}.log"]
    own += [f"requirepass {password}"] if password else []
    file.write_text("\n".join([*own, *lines, ""]))
    process = subprocess.Popen([str(embedded.binary()), str(file), "--sentinel"])
    try:
        wait_for(lambda: answers_redis(f"redis://:{password}@127.0.0.1:{port}/0"), what="the Sentinel")
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def watched_by_sentinels(folder: Path) -> Iterator[Group]:
    """Run a primary, its replica and three Sentinels."""
    ports, sentinels = [free_port(), free_port()], [free_port() for _ in range(3)]
    with ExitStack() as stack:
        servers = []
        for number, port in enumerate(ports):
            (own := folder / str(port)).mkdir()
            words = ["--bind", "127.0.0.1", "--port", str(port), "--masterauth", "secret"]
            words += ["--repl-diskless-sync-delay", "0"]
            words += ["--replicaof", "127.0.0.1", str(ports[0])] if number else []
            servers.append(stack.enter_context(RedisServer(own, *words)))
            with redis.Redis.from_url(servers[-1].url) as client:
                client.config_set("requirepass", "secret")
        lines = [f"monitor main 127.0.0.1 {ports[0]} 2", "auth-pass main secret"]
        lines += ["down-after-milliseconds main 500", "failover-timeout main 5000"]
        for port in sentinels:
            stack.enter_context(sentinel(folder, port, *[f"sentinel {line}" for line in lines]))
        hosts = ",".join(f"127.0.0.1:{port}" for port in [free_port(), *sentinels])
        group = Group(servers, ports, sentinels, f"sentinel://:secret@{hosts}/0?master=main")
        wait_for(lambda: group.primary() == ports[0] and group.is_complete(), what="the Sentinels")
        yield group
