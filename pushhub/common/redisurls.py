"""The URLs that PUSHHUB_REDIS_URL takes, beside those of redis-py; the settings need no client for them."""

from __future__ import annotations

SENTINEL_SCHEMES = ("sentinel://", "sentinels://")
