"""The URLs that PUSHHUB_REDIS_URL takes, beside those of redis-py; the settings need no client for them."""

from __future__ import annotations

SENTINEL_SCHEMES = ("sentinel://", "sentinels://")
#: As in other Python libraries that reach a Cluster by a URL, with a comma between its nodes.
CLUSTER_SCHEMES = ("redis+cluster://", "rediss+cluster://")


def is_cluster(url: str) -> bool:
    """Return whether a URL names the nodes of a Redis Cluster."""
    return url.startswith(CLUSTER_SCHEMES)
