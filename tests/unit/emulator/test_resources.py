"""How the emulator reads the resources to create at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pushhub.emulator.resources import ResourcesError, read_resources

ORDERS = "projects/demo/topics/orders"


def test_a_short_form_lists_a_project_its_topics_and_their_subscriptions() -> None:
    resources = read_resources(
        projects=[("--project", "demo,orders:billing:mail,returns"), ("--project", "example.com:empty")], path=None
    )
    assert resources.projects == ["demo", "example.com:empty"]
    assert resources.bodies["topics"] == {ORDERS: {}, "projects/demo/topics/returns": {}}
    assert resources.bodies["subscriptions"] == {
        "projects/demo/subscriptions/billing": {"topic": ORDERS},
        "projects/demo/subscriptions/mail": {"topic": ORDERS},
    }


def test_a_file_has_the_bodies_of_rest_and_may_shorten_names_of_its_project(tmp_path: Path) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(
        """
        projects:
          demo:
            serviceAccounts:
              pusher: {displayName: Pushes}
            topics:
              orders: {labels: {team: shop}}
              dead:
            subscriptions:
              billing:
                topic: orders
                ackDeadlineSeconds: 20
                deadLetterPolicy: {deadLetterTopic: dead, maxDeliveryAttempts: 5}
              foreign: {topic: projects/other/topics/news}
        """
    )
    resources = read_resources(projects=[], path=path)
    assert resources.projects == ["demo"]
    assert resources.bodies["serviceAccounts"] == {"projects/demo/serviceAccounts/pusher": {"displayName": "Pushes"}}
    assert resources.bodies["topics"] == {ORDERS: {"labels": {"team": "shop"}}, "projects/demo/topics/dead": {}}
    policy = {"deadLetterTopic": "projects/demo/topics/dead", "maxDeliveryAttempts": 5}
    assert resources.bodies["subscriptions"] == {
        "projects/demo/subscriptions/billing": {"topic": ORDERS, "ackDeadlineSeconds": 20, "deadLetterPolicy": policy},
        "projects/demo/subscriptions/foreign": {"topic": "projects/other/topics/news"},
    }


@pytest.mark.parametrize("text", ["", ",orders", "demo,", "demo,,orders", "demo:orders", "demo:orders,returns"])
def test_a_short_form_with_a_gap_or_without_its_comma_is_refused(text: str) -> None:
    with pytest.raises(ResourcesError, match=f"PUBSUB_PROJECT1={text}: give PROJECT,TOPIC"):
        read_resources(projects=[("PUBSUB_PROJECT1", text)], path=None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("projects: [demo]", "projects: give a mapping"),
        ("- projects", "the file: give a mapping"),
        ("projects: {demo: {topic: {}}}", "projects.demo.topic: give one of serviceAccounts, topics, subscriptions"),
        ("projects: {demo: {topics: {orders: 5}}}", "projects.demo.topics.orders: give a mapping"),
        ("projects: {demo: {topics: {7: {}}}}", "projects.demo.topics: give a mapping of names"),
        ("projects: {", "is not YAML"),
        ("topics: {orders: {}}", "topics: give projects"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_place(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "resources.yaml"
    path.write_text(content)
    with pytest.raises(ResourcesError, match=reason):
        read_resources(projects=[], path=path)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ResourcesError, match="/nowhere.yaml: No such file"):
        read_resources(projects=[], path=Path("/nowhere.yaml"))
