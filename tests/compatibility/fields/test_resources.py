"""The fields of topics, snapshots and policies, and those of the methods around them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import iam_policy_pb2, options_pb2, policy_pb2

from pushhub.common.principals import Principal
from subscriptions import selectors
from subscriptions.iam import access, grants
from tests.compatibility.fields.trials import SUBSCRIPTION, TOPIC, Shop, tries

SNAPSHOT = "projects/shop/snapshots/before"


@tries("Topic", "name", "labels")
@tries("GetTopicRequest", "topic")
@tries("UpdateTopicRequest", "topic", "updateMask")
@tries("DeleteTopicRequest", "topic")
def test_a_topic_is_created_changed_and_deleted(shop: Shop) -> None:
    shop.topic(TOPIC + "-2", labels={"a": "1"}, message_retention_duration="600s")
    changed = {"name": TOPIC + "-2", "labels": {"a": "2"}}

    shop.publisher.update_topic({"topic": changed, "update_mask": "labels"})

    got = shop.publisher.get_topic({"topic": TOPIC + "-2"})
    assert (got.name, dict(got.labels), got.message_retention_duration.seconds) == (TOPIC + "-2", {"a": "2"}, 600)
    shop.publisher.delete_topic({"topic": TOPIC + "-2"})
    with pytest.raises(exceptions.NotFound):
        shop.publisher.get_topic({"topic": TOPIC + "-2"})


@tries("ListTopicsRequest", "project", "pageSize", "pageToken")
@tries("ListTopicsResponse", "topics", "nextPageToken")
@tries("ListSubscriptionsRequest", "project", "pageSize", "pageToken")
@tries("ListSubscriptionsResponse", "subscriptions", "nextPageToken")
@tries("ListSnapshotsRequest", "project", "pageSize", "pageToken")
@tries("ListSnapshotsResponse", "snapshots", "nextPageToken")
def test_resources_of_a_project_are_listed_page_by_page(shop: Shop) -> None:
    shop.topic(TOPIC + "-2")
    shop.topic("projects/depot/topics/other")
    for name in (SUBSCRIPTION, SUBSCRIPTION + "-2"):
        shop.subscription(name)
        shop.subscriber.create_snapshot({"name": name.replace("subscriptions", "snapshots"), "subscription": name})

    for method, resources_of, expected in (
        (shop.publisher.list_topics, lambda page: page.topics, [TOPIC, TOPIC + "-2"]),
        (shop.subscriber.list_subscriptions, lambda page: page.subscriptions, [SUBSCRIPTION, SUBSCRIPTION + "-2"]),
        (
            shop.subscriber.list_snapshots,
            lambda page: page.snapshots,
            ["projects/shop/snapshots/worker", "projects/shop/snapshots/worker-2"],
        ),
    ):
        first, second = _pages(method, {"project": "projects/shop", "page_size": 1})
        assert [resource.name for page in (first, second) for resource in resources_of(page)] == expected
        assert first.next_page_token and not second.next_page_token
        third = next(iter(method({"project": "projects/shop", "page_token": first.next_page_token}).pages))
        assert [resource.name for resource in resources_of(third)] == expected[1:]


def _pages(method: Any, request: dict[str, Any]) -> list[Any]:
    return list(method(request).pages)


@tries("ListTopicSubscriptionsRequest", "topic", "pageSize", "pageToken")
@tries("ListTopicSubscriptionsResponse", "subscriptions", "nextPageToken")
@tries("ListTopicSnapshotsRequest", "topic", "pageSize", "pageToken")
@tries("ListTopicSnapshotsResponse", "snapshots", "nextPageToken")
def test_resources_of_a_topic_are_listed_page_by_page(shop: Shop) -> None:
    shop.topic(TOPIC + "-2")
    shop.subscription("projects/shop/subscriptions/elsewhere", topic=TOPIC + "-2")
    names = [SUBSCRIPTION, SUBSCRIPTION + "-2"]
    snapshots = [name.replace("subscriptions", "snapshots") for name in names]
    for name, snapshot in zip(names, snapshots, strict=True):
        shop.subscription(name)
        shop.subscriber.create_snapshot({"name": snapshot, "subscription": name})

    for method, resources_of, expected in (
        (shop.publisher.list_topic_subscriptions, lambda page: page.subscriptions, names),
        (shop.publisher.list_topic_snapshots, lambda page: page.snapshots, snapshots),
    ):
        first, second = _pages(method, {"topic": TOPIC, "page_size": 1})
        assert [*resources_of(first), *resources_of(second)] == expected
        assert first.next_page_token and not second.next_page_token
        third = next(iter(method({"topic": TOPIC, "page_token": first.next_page_token}).pages))
        assert list(resources_of(third)) == expected[1:]


@tries("Topic", "messageRetentionDuration")
@tries("Subscription", "topicMessageRetentionDuration")
@tries("SeekRequest", "subscription", "time")
def test_a_topic_retains_messages_for_a_seek_to_an_earlier_time(shop: Shop) -> None:
    start = datetime.now(UTC) - timedelta(seconds=30)
    kept = TOPIC + "-kept"
    shop.topic(kept, message_retention_duration="86400s")
    for topic in (TOPIC, kept):
        name = f"projects/shop/subscriptions/of-{topic.rpartition('/')[2]}"
        shop.subscription(name, topic=topic)
        shop.publish("x", topic=topic)
        shop.ack(shop.pull(name), name)
        shop.subscriber.seek({"subscription": name, "time": start})

    assert [received.message.data for received in shop.pull("projects/shop/subscriptions/of-orders-kept")] == [b"x"]
    assert shop.pull("projects/shop/subscriptions/of-orders") == []
    got = shop.subscriber.get_subscription({"subscription": "projects/shop/subscriptions/of-orders-kept"})
    assert got.topic_message_retention_duration.days == 1


@tries("Topic", "messageStoragePolicy")
@tries("MessageStoragePolicy", "allowedPersistenceRegions", "enforceInTransit")
def test_a_message_storage_policy_allows_and_refuses_regions(shop: Shop) -> None:
    """The server's own region is `local`."""
    message_storage_policy = {"allowed_persistence_regions": ["local"], "enforce_in_transit": True}
    shop.topic(TOPIC + "-here", message_storage_policy=message_storage_policy)
    shop.topic(
        TOPIC + "-there", message_storage_policy={**message_storage_policy, "allowed_persistence_regions": ["eu"]}
    )
    name = SUBSCRIPTION + "-there"
    shop.subscription(name, topic=TOPIC + "-there")

    assert shop.publish("x", topic=TOPIC + "-here")
    with pytest.raises(exceptions.FailedPrecondition, match="enforceInTransit and allows eu"):
        shop.publish("x", topic=TOPIC + "-there")
    with pytest.raises(exceptions.FailedPrecondition, match="Pull is not allowed in the region local"):
        shop.pull(name)

    change = {"name": TOPIC + "-there", "message_storage_policy": {"allowed_persistence_regions": ["eu"]}}
    shop.publisher.update_topic({"topic": change, "update_mask": {"paths": ["message_storage_policy"]}})
    shop.publish("x", topic=TOPIC + "-there")
    assert [received.message.data for received in shop.pull(name)] == [b"x"]


@tries("CreateSnapshotRequest", "name", "subscription", "labels")
@tries("Snapshot", "name", "topic", "expireTime", "labels")
@tries("GetSnapshotRequest", "snapshot")
@tries("UpdateSnapshotRequest", "snapshot", "updateMask")
@tries("DeleteSnapshotRequest", "snapshot")
@tries("SeekRequest", "snapshot")
def test_a_snapshot_brings_back_what_was_not_acknowledged(shop: Shop) -> None:
    shop.subscription()
    shop.publish("x")
    shop.subscriber.create_snapshot({"name": SNAPSHOT, "subscription": SUBSCRIPTION, "labels": {"a": "1"}})
    shop.ack(shop.pull())
    assert shop.pull() == []

    shop.subscriber.seek({"subscription": SUBSCRIPTION, "snapshot": SNAPSHOT})

    assert [received.message.data for received in shop.pull()] == [b"x"]
    changed = {"name": SNAPSHOT, "labels": {"a": "2"}}
    shop.subscriber.update_snapshot({"snapshot": changed, "update_mask": "labels"})
    got = shop.subscriber.get_snapshot({"snapshot": SNAPSHOT})
    assert (got.name, got.topic, dict(got.labels)) == (SNAPSHOT, TOPIC, {"a": "2"})
    assert timedelta(days=6) < got.expire_time - datetime.now(UTC) < timedelta(days=8)
    shop.subscriber.delete_snapshot({"snapshot": SNAPSHOT})
    with pytest.raises(exceptions.NotFound):
        shop.subscriber.get_snapshot({"snapshot": SNAPSHOT})


@tries("SetIamPolicyRequest", "policy")
@tries("Policy", "bindings", "etag", "version")
@tries("Binding", "role", "members")
@tries("TestIamPermissionsRequest", "permissions")
@tries("TestIamPermissionsResponse", "permissions")
def test_a_policy_grants_what_its_bindings_say(shop: Shop) -> None:
    ada = Principal("user:ada@example.com")
    binding = policy_pb2.Binding(role="roles/pubsub.publisher", members=["user:ada@example.com"])
    policy = policy_pb2.Policy(bindings=[binding], version=1)

    stored = shop.publisher.set_iam_policy(iam_policy_pb2.SetIamPolicyRequest(resource=TOPIC, policy=policy))

    topic = selectors.get_topic(name=TOPIC)
    access.forget_decisions()
    assert access.allowed(ada, "pubsub.topics.publish", topic)
    assert not access.allowed(ada, "pubsub.topics.delete", topic)
    assert stored.version == 1
    stale = policy_pb2.Policy(etag=stored.etag[:-1] + bytes([stored.etag[-1] ^ 1]))
    with pytest.raises(exceptions.Aborted):
        shop.publisher.set_iam_policy(iam_policy_pb2.SetIamPolicyRequest(resource=TOPIC, policy=stale))
    with pytest.raises(exceptions.InvalidArgument, match="version"):
        shop.publisher.set_iam_policy(
            iam_policy_pb2.SetIamPolicyRequest(resource=TOPIC, policy=policy_pb2.Policy(version=2))
        )
    permissions = ["pubsub.topics.publish", "pubsub.topics.delete"]
    held = grants.list_held_permissions(TOPIC, {"permissions": permissions}, caller=ada)
    assert held == {"permissions": ["pubsub.topics.publish"]}
    wanted = iam_policy_pb2.TestIamPermissionsRequest(resource=TOPIC, permissions=permissions)
    assert shop.publisher.test_iam_permissions(wanted).permissions == permissions, "the developer owns everything"
    got = shop.publisher.get_iam_policy(
        iam_policy_pb2.GetIamPolicyRequest(resource=TOPIC, options=options_pb2.GetPolicyOptions())
    )
    assert got.etag == stored.etag and got.bindings == stored.bindings


@pytest.mark.parametrize(("mask", "kept"), [([], False), (["bindings", "etag", "audit_configs"], True)])
def test_audit_configurations_are_kept_if_the_mask_names_them(shop: Shop, mask: list[str], kept: bool) -> None:
    """Without a mask, policy.proto says, a policy's bindings and its etag count."""
    config = policy_pb2.AuditConfig(service="allServices", audit_log_configs=[policy_pb2.AuditLogConfig(log_type=2)])
    request = iam_policy_pb2.SetIamPolicyRequest(
        resource=TOPIC, policy=policy_pb2.Policy(audit_configs=[config]), update_mask={"paths": mask}
    )
    assert list(shop.publisher.set_iam_policy(request).audit_configs) == ([config] if kept else [])
