"""Keeps task messages that can't be decoded, for the console."""

from __future__ import annotations

import logging
import time

import orjson
import redis

from deliveries.backlog.default import default_backlog, impatient_backlog

logger = logging.getLogger(__name__)

REJECTED_KEY = "ph:rejected"
#: Only the newest messages are kept, so that they can't fill Redis.
MAX_KEPT = 1000


def reject(text: str, *, reason: str) -> None:
    """Keep the beginning of a message, and the reason."""
    logger.error("rejected a task message: %s", reason)
    row = orjson.dumps({"at": time.time(), "reason": reason, "message": text})
    try:
        pipe = default_backlog().shared.pipeline()
        pipe.lpush(REJECTED_KEY, row)
        pipe.ltrim(REJECTED_KEY, 0, MAX_KEPT - 1)
        pipe.execute()
    except redis.RedisError as error:
        logger.warning("a rejected message is not kept", exc_info=error)


def rejected(limit: int = 100) -> list[dict[str, object]]:
    return [orjson.loads(row) for row in impatient_backlog().shared.lrange(REJECTED_KEY, 0, limit - 1)]
