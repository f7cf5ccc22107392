"""Which regions may store and deliver the messages of a topic: its message storage policy. Pure.

All regions of a deployment share one database. The region of a message decides whose workers push it and whose push
window it counts in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pushhub.common.errors import FailedPrecondition

#: A MessageStoragePolicy in JSON form, or None for a topic without one.
StoragePolicy = Mapping[str, Any] | None


def is_region_allowed(policy: StoragePolicy, region: str) -> bool:
    return policy is None or region in policy.get("allowedPersistenceRegions", ())


def storage_region(policy: StoragePolicy, region: str, *, own_region: str) -> str:
    """Return the region that stores a message published from `region`.

    A message from a region that is not allowed goes to the deployment's own region where that one is allowed. If it is
    not either, the message stays in the region it was published from: nobody serves the others. Raises
    FailedPrecondition if the policy is enforced in transit.
    """
    if is_region_allowed(policy, region):
        return region
    require_transit(policy, region, call="Publish")
    return own_region if is_region_allowed(policy, own_region) else region


def is_transit_allowed(policy: StoragePolicy, region: str) -> bool:
    """Return whether publishers and subscribers in this region may use the topic."""
    return policy is None or not policy.get("enforceInTransit") or is_region_allowed(policy, region)


def require_transit(policy: StoragePolicy, region: str, *, call: str) -> None:
    """Raise FailedPrecondition unless publishers and subscribers in this region may use the topic."""
    if policy is None or is_transit_allowed(policy, region):
        return
    allowed = ", ".join(policy["allowedPersistenceRegions"])
    raise FailedPrecondition(
        f"{call} is not allowed in the region {region}: the topic's messageStoragePolicy has enforceInTransit and "
        f"allows {allowed}.",
        field="messageStoragePolicy.allowedPersistenceRegions",
    )
