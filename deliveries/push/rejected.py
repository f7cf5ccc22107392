"""Task messages that cannot be decoded: kept for people to look at, and no reason to stop."""

from __future__ import annotations

import logging
import time

import orjson
import redis

from deliveries.backlog.default import default_backlog

logger = logging.getLogger(__name__)

REJECTED_KEY = "ph:rejected"
#: The newest are kept; whoever sends garbage must not fill Redis with it.
KEPT = 1000


def reject(text: str, *, reason: str) -> None:
    """Keep a message's beginning and the reason."""
    logger.error("rejected a task message: %s", reason)
    row = orjson.dumps({"at": time.time(), "reason": reason, "message": text})
    try:
        pipe = default_backlog().client.pipeline()
        pipe.lpush(REJECTED_KEY, row)
        pipe.ltrim(REJECTED_KEY, 0, KEPT - 1)
        pipe.execute()
    except redis.RedisError:
        logger.warning("a rejected message could not be kept: Redis is away")


def rejected(limit: int = 100) -> list[dict[str, object]]:
    """The newest rejected messages, for the admin."""
    return [orjson.loads(row) for row in default_backlog().client.lrange(REJECTED_KEY, 0, limit - 1)]
