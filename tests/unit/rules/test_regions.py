"""Which region stores a message under a topic's message storage policy."""

from __future__ import annotations

import pytest

from deliveries.rules.regions import StoragePolicy, is_transit_allowed, storage_region
from pushhub.common.errors import FailedPrecondition

EU_US = {"allowedPersistenceRegions": ["eu", "us"]}
ENFORCED = {**EU_US, "enforceInTransit": True}


@pytest.mark.parametrize(
    ("policy", "published_from", "own_region", "expected"),
    [
        (None, "asia", "local", "asia"),
        (EU_US, "us", "eu", "us"),
        (EU_US, "asia", "eu", "eu"),
        (EU_US, "asia", "local", "asia"),
        (ENFORCED, "us", "local", "us"),
    ],
)
def test_a_message_is_stored_in_an_allowed_region_if_there_is_one(
    policy: StoragePolicy, published_from: str, own_region: str, expected: str
) -> None:
    assert storage_region(policy, published_from, own_region=own_region) == expected


def test_enforced_in_transit_a_region_that_is_not_allowed_is_refused_by_name() -> None:
    assert is_transit_allowed(EU_US, "asia")
    assert not is_transit_allowed(ENFORCED, "asia")
    with pytest.raises(FailedPrecondition, match="Publish is not allowed in the region asia.*allows eu, us") as refused:
        storage_region(ENFORCED, "asia", own_region="eu")
    assert refused.value.field == "messageStoragePolicy.allowedPersistenceRegions"
