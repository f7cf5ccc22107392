"""Leases in Redis, by which several maintenance workers share the timed tasks: one process at a time runs each.

A lease saves work and nothing depends on it: Redis may lose leases, and a process that was frozen goes on after another
one has taken its lease. So each task either does nothing that has been done already, or checks in the transaction that
writes whether its reason still holds.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis
from celery.app.task import Task
from redis.exceptions import LockError
from redis.lock import Lock

from deliveries.backlog import timed
from deliveries.backlog.connection import redis_client
from deliveries.backlog.records import PREFIX
from pushhub.machines import OF_A_MACHINE

logger = logging.getLogger(__name__)

#: A lease ends this long after its process was killed or frozen. Its holder renews it three times as often. The
#: most frequent tasks come every 5 s, so another process runs them 15 s after the last sign of life at the latest.
LEASE_SECONDS = 10.0


def lease(name: str, *, seconds: float) -> Lock:
    """Return a lease that nobody waits for. It has a time limit, so a holder that dies keeps it no longer."""
    return Lock(redis_client(), f"{PREFIX}lease:{name}", timeout=seconds, blocking=False, thread_local=False)


def take(lock: Lock) -> bool:
    """Take a lease that is free; return whether it was. Its value says to operators which process has it."""
    return bool(lock.acquire(token=f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(8)}"))


@contextmanager
def held(name: str) -> Iterator[bool]:
    """Hold a lease during the block, however long it takes. Yield false if it can't be had.

    Another process may hold it, or Redis may be away.
    """
    lock = lease(name, seconds=LEASE_SECONDS)
    try:
        is_held = take(lock)
    except redis.RedisError as error:
        logger.warning("%s is left out", name, exc_info=error)
        is_held = False
    if not is_held:
        yield False
        return
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(lock, ended), name="lease", daemon=True)
    renewing.start()
    try:
        yield True
    finally:
        ended.set()
        renewing.join()
        with suppress(LockError, redis.RedisError):
            lock.release()


def _renew(lock: Lock, ended: threading.Event) -> None:
    while not ended.wait(LEASE_SECONDS / 3):
        try:
            lock.reacquire()
        except LockError:
            return  # the process was frozen, or Redis has lost the lease
        except redis.RedisError as error:
            logger.warning("the lease %s is not renewed", lock.name, exc_info=error)


class TimedTask(Task[Any, Any]):
    """A task that one process at a time runs for each list of arguments. What beat sends meanwhile is dropped."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.request.called_directly:
            return self.run(*args, **kwargs)
        name = timed.task_name(self.name, args)
        with held(timed.task_name(name, [socket.gethostname()] if self.name in OF_A_MACHINE else [])) as is_held:
            if not is_held:
                return None
            result = self.run(*args, **kwargs)
        with suppress(redis.RedisError):
            timed.note_done(redis_client(), name)
        return result
