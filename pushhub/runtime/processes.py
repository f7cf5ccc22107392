"""PushHub's processes: how each is started, and how to find out whether it is ready.

`make up` runs them all under the supervisor. A container runs one and checks its health:
`python -m pushhub.runtime.processes push` and `python -m pushhub.runtime.processes push --check`. A second push worker
on one machine is `push-2`. A check that needs neither Redis nor the database does not import their clients, which would
take most of its time.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import re
import socket
import ssl
import sys
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from django.conf import settings

from pushhub.common import background
from pushhub.common import environment as env
from pushhub.common.redisurls import is_cluster
from subscriptions.transforms.systemcalls import why_unrestricted

logger = logging.getLogger(__name__)

UNRESTRICTED = "functions of message transforms run without a filter of system calls: %s"

#: Flower keeps the tasks it shows in memory, about 2 KB each.
FLOWER_TASKS = 10_000
#: Of which processes one machine may run several, and how all but the first are called: push-2.
SEVERAL = re.compile("(push|maintenance)-[a-z0-9]+", re.ASCII)
#: What each column holds for a push: `monitor.COLUMNS`.
FLOWER_COLUMNS = "args,kwargs,uuid,retries,result,eta,state,received,runtime,worker"

#: How often a worker tells Flower that it lives. After twice that long, Flower takes it for offline. With Celery's own
#: 2 s, this is a tenth of what an idle worker does.
HEARTBEAT_SECONDS = 5

#: How long one check of a process may take.
CHECK_SECONDS = 2.0
#: How long each request to a Celery worker waits for a reply. A worker that is just starting misses the first ones.
ANSWER_SECONDS = (*[0.2] * 6, 0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Process:
    """One process: its name in the log, its title, its command line, its address, and the check whether it is ready.

    Other processes depend on a process with `is_base`, so it stops after them. `on_stop` is called before a process is
    stopped. If a process with `is_optional` cannot start, PushHub goes on without it. `is_stuck` tells whether a
    restart would help; without it, one that isn't ready is stuck.
    """

    name: str
    title: str
    command: list[str]
    where: str
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    is_base: bool = False
    is_optional: bool = False
    on_stop: Callable[[], None] | None = None
    is_stuck: Callable[[], bool] | None = None


def answers_http(address: str, *, login: str = "") -> bool:
    """Whether a GET of `address`, with a login of `user:password`, returns 200.

    The environment's proxy settings are ignored.
    """
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - an address from the settings
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=CHECK_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def answers_redis(redis_url: str) -> bool:
    """Whether the Redis at `redis_url` answers; of a Cluster, any node. A PING would go to all of them."""
    import redis

    from pushhub.common.redisclient import connect_to_redis

    try:
        with connect_to_redis(redis_url, seconds=CHECK_SECONDS, redis_connect_func=None) as client:
            return bool(client.time() if is_cluster(redis_url) else client.ping())
    except redis.RedisError:
        return False


def works(node: str, *, without_redis: bool = False) -> bool:
    """Whether the Celery worker `node` replies that each of its background threads is alive and gets its jobs done.

    The consumer loop sends the reply, so a reply also shows that the loop is alive. Replies come through Redis; the
    answer while that is away or refuses writes is `without_redis`.
    """
    import redis
    from kombu.exceptions import OperationalError

    app = import_module("pushhub.celery").app
    replies = None
    try:
        for seconds in ANSWER_SECONDS:
            replies = replies or app.control.broadcast("threads", destination=[node], reply=True, timeout=seconds)
    except (OSError, redis.RedisError, OperationalError):
        return without_redis
    threads_of_replies = [reply[node] for reply in replies or []]
    for name, seconds in ((name, seconds) for threads in threads_of_replies for name, seconds in threads.items()):
        if seconds > background.STUCK_SECONDS:
            logger.warning("thread %s of %s has been stuck for %d s: silent, or with a job", name, node, seconds)
            return False
    return bool(threads_of_replies)


def answers_grpc(address: tuple[str, int]) -> bool:
    """Whether the gRPC port speaks HTTP/2: it replies to the preface with a SETTINGS frame (RFC 9113, section 3.4)."""
    settings_frame = b"\0\0\0\x04\0\0\0\0\0"
    try:
        with (
            socket.create_connection(env.reachable(address), timeout=CHECK_SECONDS) as plain,
            _with_tls(plain) as connection,
        ):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame)
            return connection.recv(9)[3:4] == b"\x04"
    except OSError:
        return False


def _with_tls(plain: socket.socket) -> socket.socket:
    """Add TLS if the port uses it. The certificate isn't verified, because this is PushHub's own process."""
    if not settings.GRPC_TLS_CERT:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain)


def _worker(name: str, title: str, *, queue: str, more: tuple[str, ...] = ()) -> Process:
    node = f"{name}@{socket.gethostname()}"
    command = [
        *(sys.executable, "-m", "celery", "--app=pushhub", "--quiet", "worker"),
        f"--hostname={node}",
        f"--queues={queue}",
        "--pool=solo",
        "--events",
        # The workers need nothing from each other, and gossip would load Redis all day.
        "--without-gossip",
        "--without-mingle",
        f"--heartbeat-interval={HEARTBEAT_SECONDS}",
        f"--loglevel={settings.LOG_LEVEL}",
        *more,
    ]
    return Process(
        name,
        title,
        command,
        f"on queue {queue}",
        lambda: works(node),
        # A worker waits for Redis to come back, which a restart would only delay.
        is_stuck=lambda: not works(node, without_redis=True),
    )


def web() -> Process:
    """REST, admin, tokens and documentation."""
    command = [sys.executable, "-m", "pushhub.runtime.webserver"]
    address = env.url(settings.HTTP_ADDRESS)
    return Process("web", "REST and admin", command, f"at {address}", lambda: answers_http(f"{address}/healthz"))


def grpc() -> Process:
    """gRPC, and REST on the same port."""
    host, port = settings.GRPC_ADDRESS
    command = [sys.executable, "-m", "pushhub.runtime.grpcserver"]
    where = f"at {host}:{port}" + (" (TLS)" if settings.GRPC_TLS_CERT else "")
    return Process("grpc", "gRPC", command, where, lambda: answers_grpc(settings.GRPC_ADDRESS))


def push(name: str = "push") -> Process:
    return _worker(name, "push worker", queue=f"deliveries.{settings.REGION}")


def maintenance(name: str = "maintenance") -> Process:
    """A worker of timed tasks, with Celery's beat, which sends them. One beat of a deployment sends at a time."""
    return _worker(name, "maintenance worker and beat", queue="maintenance", more=("--beat",))


def flower() -> Process:
    """Flower, the monitor, behind a guard. It can stop workers, so on a public address it requires a login."""
    env.require_package("flower", extra="service", why="the process flower")
    host, port = settings.FLOWER_ADDRESS
    login = env.secret("FLOWER_LOGIN")
    if not login and not env.is_loopback(host):
        raise env.SettingError(
            f"PUSHHUB_FLOWER={host}:{port} can be reached from other machines: "
            "set PUSHHUB_FLOWER_LOGIN=user:password, or name a file in PUSHHUB_FLOWER_LOGIN_FILE"
        )
    if login and not all(re.fullmatch("[^:]+:.+", pair) for pair in login.split(",")):
        raise env.SettingError("PUSHHUB_FLOWER_LOGIN: give user:password")
    options = (
        *(f"--address={host}", f"--port={port}", f"--max_tasks={FLOWER_TASKS}", "--logging=warning"),
        f"--tasks_columns={FLOWER_COLUMNS}",
        # PushHub's workers send events anyway. Flower would undo `celery control disable_events` every few seconds.
        "--enable_events=False",
    )
    address = env.url(settings.FLOWER_ADDRESS)
    return Process(
        "flower",
        "Flower",
        [sys.executable, "-m", "pushhub.runtime.monitor", *options],
        f"at {address}",
        lambda: answers_http(f"{address}/healthcheck", login=login.partition(",")[0]),
        {"FLOWER_BASIC_AUTH": login} if login else {},
    )


def rollup() -> Process:
    """The Spark stream that counts the journal into metrics. It needs Java and PySpark; a deployment has one."""
    from deliveries.telemetry.counting.lag import keeps_up

    return Process(
        "rollup",
        "rollup of metrics",
        [sys.executable, "-m", "django", "pipeline", "rollup"],
        f"from {settings.JOURNAL}",
        lambda: keeps_up(Path(settings.JOURNAL)),
        # With both, the allocators return about 100 MB that they would keep.
        {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"},
        # Without it, the embedded counter counts.
        is_optional=True,
    )


BY_NAME: dict[str, Callable[..., Process]] = {
    make.__name__: make for make in (web, grpc, push, maintenance, flower, rollup)
}


def main() -> None:
    """Become one of the processes or, with --check or --alive, tell by the exit status how it is."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    parser = argparse.ArgumentParser(prog="python -m pushhub.runtime.processes", description=main.__doc__)
    several = "push-2 and so on are further push workers of this machine; so is maintenance-2"
    parser.add_argument("name", metavar="|".join(BY_NAME), help=several)
    parser.add_argument("--check", action="store_true", help="exit with 0 if the process is ready, else with 1")
    parser.add_argument("--alive", action="store_true", help="exit with 1 if it has to be restarted, else with 0")
    arguments = parser.parse_args()
    numbered = SEVERAL.fullmatch(arguments.name)
    if not numbered and arguments.name not in BY_NAME:
        parser.error(f"unknown process {arguments.name!r}: choose from {', '.join(BY_NAME)}")
    try:
        process = BY_NAME[numbered[1]](arguments.name) if numbered else BY_NAME[arguments.name]()
    except env.SettingError as error:
        sys.exit(str(error))
    if arguments.alive and process.is_stuck is not None:
        sys.exit(1 if process.is_stuck() else 0)
    if arguments.check or arguments.alive:
        if arguments.name == "web" and "replica" in settings.DATABASES:
            from pushhub.common.replica import watch

            sys.stdout.write(f"read replica: {watch.look().text}\n")
        sys.exit(0 if process.is_ready() else 1)
    import redis
    from django.db import DatabaseError, connection

    from pushhub.common.databases import FINISH_RESTORE, HALF_RESTORED, is_half_restored
    from pushhub.runtime.redisversion import UnusableRedisError, check_redis

    try:
        check_redis()
    except UnusableRedisError as error:
        sys.exit(str(error))
    except redis.RedisError:
        pass  # the process waits for it
    # It waits for the database too. Django warns of queries before its apps are loaded, which take a second.
    with suppress(DatabaseError), warnings.catch_warnings(action="ignore"):
        if is_half_restored(connection):
            sys.exit(f"{HALF_RESTORED} {FINISH_RESTORE}")
    if why := why_unrestricted():
        logger.warning(UNRESTRICTED, why)
    for sentence in env.misspelt():
        logger.warning("%s", sentence)
    os.environ.update(process.environment)
    os.execv(process.command[0], process.command)  # noqa: S606


if __name__ == "__main__":
    main()
