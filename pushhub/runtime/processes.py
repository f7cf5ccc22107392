"""The processes PushHub is made of: how each is started, and how to tell that it is ready.

`make up` runs them all under the supervisor. A container runs one, and asks it for its health:
`python -m pushhub.runtime.processes push` and `python -m pushhub.runtime.processes push --check`.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import redis
from django.conf import settings
from kombu.exceptions import OperationalError

from deliveries.pipeline.counting.lag import keeps_up
from pushhub import environment as env
from pushhub.common import background

logger = logging.getLogger(__name__)

#: Flower keeps the tasks it shows in memory, about 2 KB each.
FLOWER_TASKS = 10_000
FLOWER_COLUMNS = "kwargs,state,result,exception,eta,retries,received,runtime,worker,name,uuid"

#: How long one look at a process's health may take.
CHECK_SECONDS = 2.0
#: How long each question to a Celery worker waits for an answer. One that was just started has not heard the first.
ANSWER_SECONDS = (*[0.2] * 6, 0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Process:
    """One process: its name in the log, its command line, what it offers and where, and whether it is ready.

    The others lean on one that `is_base`, so it stops after them, and `on_stop` is called before it is told to. PushHub
    goes on without one that `is_optional` and cannot start.
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


def answers_http(address: str, *, login: str = "") -> bool:
    """Whether a GET of `address`, with a login of `user:password`, is answered with 200.

    Proxies of the environment are not asked.
    """
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}
    request = urllib.request.Request(address, headers=headers)  # noqa: S310 - an address of ours
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=CHECK_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def answers_redis(redis_url: str) -> bool:
    """Whether the Redis at `redis_url` answers a PING."""
    try:
        with redis.Redis.from_url(redis_url, socket_timeout=CHECK_SECONDS, socket_connect_timeout=CHECK_SECONDS) as it:
            return bool(it.ping())
    except redis.RedisError:
        return False


def works(node: str) -> bool:
    """Whether the Celery worker `node` tells by remote control, which its consumer loop must be alive for, that each of
    its background threads gave a sign of life lately.
    """
    app = import_module("pushhub.celery").app
    replies = None
    try:
        for seconds in ANSWER_SECONDS:
            replies = replies or app.control.broadcast("threads", destination=[node], reply=True, timeout=seconds)
    except (OSError, redis.RedisError, OperationalError):
        return False
    silences = [reply[node] for reply in replies or []]
    for name, seconds in ((name, seconds) for threads in silences for name, seconds in threads.items()):
        if seconds > background.SILENT_SECONDS:
            logger.warning("thread %s of %s gave no sign of life for %d s", name, node, seconds)
            return False
    return bool(silences)


def answers_grpc(address: tuple[str, int]) -> bool:
    """Whether the gRPC port takes HTTP/2: it answers the preface with its SETTINGS frame (RFC 9113, section 3.4)."""
    settings_frame = b"\0\0\0\x04\0\0\0\0\0"
    try:
        with socket.create_connection(env.reachable(address), timeout=CHECK_SECONDS) as plain, _secured(plain) as it:
            it.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame)
            return it.recv(9)[3:4] == b"\x04"
    except OSError:
        return False


def _secured(plain: socket.socket) -> socket.socket:
    """With TLS where the port speaks it. Whose certificate it is doesn't matter to a look at our own process."""
    if not settings.GRPC_TLS_CERT:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain)


def _celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "--app=pushhub", "--quiet", *words]


def _worker(name: str, title: str, *, queue: str, more: tuple[str, ...] = ()) -> Process:
    node = f"{name}@{socket.gethostname()}"
    command = _celery(
        "worker",
        f"--hostname={node}",
        f"--queues={queue}",
        "--pool=solo",
        "--events",
        # The workers have nothing to tell each other; the gossip would be commands Redis answers all day.
        "--without-gossip",
        "--without-mingle",
        f"--loglevel={settings.LOG_LEVEL}",
        *more,
    )
    return Process(name, title, command, f"on queue {queue}", lambda: works(node))


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


def push() -> Process:
    """The push worker."""
    return _worker("push", "push worker", queue=f"deliveries.{settings.REGION}")


def maintenance() -> Process:
    """The worker of timed tasks, and the beat that times them. There is one of it in a deployment."""
    schedule = f"--schedule={settings.DATA_DIR / 'beat-schedule'}"
    return _worker("maintenance", "maintenance worker and beat", queue="maintenance", more=("--beat", schedule))


def flower() -> Process:
    """Flower, the monitor, behind a guard. It can stop workers, so away from loopback it asks for a login."""
    host, port = settings.FLOWER_ADDRESS
    login = env.secret("FLOWER_LOGIN")
    if not login and not env.is_loopback(host):
        raise env.SettingError(
            f"PUSHHUB_FLOWER={host}:{port} is in reach of other machines: "
            "set PUSHHUB_FLOWER_LOGIN=user:password, or a file by PUSHHUB_FLOWER_LOGIN_FILE"
        )
    options = (
        *(f"--address={host}", f"--port={port}", f"--max_tasks={FLOWER_TASKS}", "--logging=warning"),
        f"--tasks_columns={FLOWER_COLUMNS}",
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
    """The stream from the journal to the metrics. It needs Java and PySpark; there is one of it in a deployment."""
    return Process(
        "rollup",
        "rollup of metrics",
        [sys.executable, "-m", "django", "pipeline", "rollup"],
        f"from {settings.JOURNAL}",
        lambda: keeps_up(Path(settings.JOURNAL)),
        # Both give memory back that the allocators would keep: a hundred megabytes.
        {"MALLOC_ARENA_MAX": "2", "ARROW_DEFAULT_MEMORY_POOL": "system"},
        # The embedded counter goes on without it.
        is_optional=True,
    )


BY_NAME: dict[str, Callable[[], Process]] = {
    "web": web,
    "grpc": grpc,
    "push": push,
    "maintenance": maintenance,
    "flower": flower,
    "rollup": rollup,
}


def main() -> None:
    """Become one of the processes, or say by the exit status whether it is ready."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    parser = argparse.ArgumentParser(prog="python -m pushhub.runtime.processes", description=main.__doc__)
    parser.add_argument("name", choices=BY_NAME)
    parser.add_argument("--check", action="store_true", help="exit with 0 when it is ready and 1 when it is not")
    arguments = parser.parse_args()
    try:
        process = BY_NAME[arguments.name]()
    except env.SettingError as error:
        sys.exit(str(error))
    if arguments.check:
        sys.exit(0 if process.is_ready() else 1)
    os.environ.update(process.environment)
    os.execv(process.command[0], process.command)  # noqa: S606


if __name__ == "__main__":
    main()
