"""What servers need: sockets that listen, open files, and an event loop.

The event loop is uvloop's, or asyncio's own where only the emulator is installed.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

T = TypeVar("T")

#: How many connections may wait until they are accepted.
BACKLOG = 2048
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The most open files that macOS takes, which calls its limit infinite.
MACOS_FILES = 10_240


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens on a host and port, where 0 is a free port and `::` takes IPv4 too.

    Raises OSError if the address can't be used.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)


def raise_open_files() -> int:
    """Raise the limit of open files of this process to the hard limit or near it, and return it.

    Shells, containers and systemd set it to 1,024, for programs that use select().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (hard, max(soft, MACOS_FILES)):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return soft


async def serve(serving: AbstractAsyncContextManager[None], *, parent: int | None = None) -> None:
    """Stay in a block until this process is asked to stop, or `parent`, a pipe of its parent, is closed."""
    stop = asyncio.Event()
    if parent is not None:
        asyncio.get_running_loop().add_reader(parent, stop.set)
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving:
        await stop.wait()


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new event loop and return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
