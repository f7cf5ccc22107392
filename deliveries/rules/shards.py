"""The shards into which timed tasks divide the subscriptions, so that several maintenance workers share the work."""

from __future__ import annotations

#: Each shard is a task of its own. More shards would read more often what all of them need.
SHARDS = 4


def is_in(subscription_id: int, shard: int | None) -> bool:
    """Return whether a subscription belongs to a shard; None stands for all of them."""
    return shard is None or shard_of(subscription_id) == shard


def shard_of(subscription_id: int) -> int:
    return subscription_id % SHARDS
