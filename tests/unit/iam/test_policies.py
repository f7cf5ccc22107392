"""Policies as values (docs/spec-access.md#policies)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pushhub.common.errors import Aborted, InvalidArgument
from subscriptions.iam import policies
from subscriptions.iam.members import parse_member, standing_for
from subscriptions.iam.roles import PERMISSIONS, PREDEFINED

PUBLISHER, VIEWER = "roles/pubsub.publisher", "roles/pubsub.viewer"


def bound(*bindings: tuple[str, list[str]], kind: str = "topic") -> list[dict[str, Any]]:
    policy_bindings = [{"role": role, "members": members} for role, members in bindings]
    return policies.normalise_bindings(policy_bindings, kind=kind)


def test_empty_bindings_are_dropped_and_duplicates_merged() -> None:
    normalised = bound(
        (VIEWER, []), (PUBLISHER, ["user:a@x.com", "user:A@X.com"]), (PUBLISHER, ["allUsers", "user:a@x.com"])
    )

    assert normalised == [{"role": PUBLISHER, "members": ["user:a@x.com", "allUsers"]}]


@pytest.mark.parametrize(
    ("member", "canonical"),
    [
        ("user:Ada@Example.COM", "user:ada@example.com"),
        ("serviceAccount:P@shop.iam.gserviceaccount.com", "serviceAccount:p@shop.iam.gserviceaccount.com"),
        ("group:Crew@example.com", "group:crew@example.com"),
        ("domain:Example.com", "domain:example.com"),
        ("allUsers", "allUsers"),
        ("allAuthenticatedUsers", "allAuthenticatedUsers"),
        ("user:developer@localhost", "user:developer@localhost"),
        ("user:ada", "user:ada"),
    ],
)
def test_email_parts_are_lower_cased(member: str, canonical: str) -> None:
    assert parse_member(member, field="m") == canonical


@pytest.mark.parametrize(
    "member",
    [
        "",
        "ada@example.com",
        "User:ada@example.com",
        "robot:ada@example.com",
        "principal:iam.googleapis.com/x",
        "principal://",
        "principalSet://a b",
        "projectOwner:",
        "projectReader:shop",
        "deleted:allUsers",
        "deleted:domain:example.com?uid=1",
        "operator:pushhub",
        "group:crew",
        "serviceAccount:a b@c",
        "domain:-x",
        "domain:",
        "user:",
        "allusers",
    ],
)
def test_a_member_of_no_known_kind_is_refused_and_named(member: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        bound((PUBLISHER, [member]))

    assert refused.value.field == "policy.bindings[0].members[0]"
    assert member in refused.value.message


def test_the_unset_policy_reads_as_acab_and_each_write_moves_the_etag() -> None:
    first = policies.next_generation(0, now_us=1_700_000_000_000_000)
    second = policies.next_generation(first, now_us=1_600_000_000_000_000)

    etags = [policies.format_etag(generation) for generation in (0, first, second)]

    assert etags[0] == "ACAB"
    assert len(set(etags)) == 3


def test_a_write_with_a_stale_etag_is_aborted_and_one_without_an_etag_wins() -> None:
    present, before = policies.format_etag(8), policies.format_etag(7)
    policies.check_etag(present, 8)
    policies.check_etag(present.rstrip("="), 8)
    policies.check_etag("", 8)

    for stale in (before, "ACAB"):
        with pytest.raises(Aborted) as aborted:
            policies.check_etag(stale, 8)
        assert aborted.value.message == (
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff."
        )
    with pytest.raises(InvalidArgument):
        policies.check_etag("a", 8)


def test_at_most_1500_principals_and_250_groups() -> None:
    users = [f"user:u{number}@x.com" for number in range(1500)]
    groups = [f"group:g{number}@x.com" for number in range(250)]

    assert bound((PUBLISHER, users))
    assert bound((PUBLISHER, groups))
    for bindings in ([(PUBLISHER, users), (VIEWER, users[:1])], [(PUBLISHER, groups), (VIEWER, groups[:1])]):
        with pytest.raises(InvalidArgument, match="too many"):
            bound(*bindings)


@pytest.mark.parametrize("kind", ["topic", "subscription", "snapshot", "schema", "project"])
def test_conditions_are_refused(kind: str) -> None:
    binding = {"role": VIEWER, "members": ["allUsers"], "condition": {"expression": "false"}}

    with pytest.raises(InvalidArgument, match="^Can't set conditional policy on this resource"):
        policies.normalise_bindings([binding], kind=kind)


@pytest.mark.parametrize(
    ("kind", "allowed", "refused"),
    [
        (
            "topic",
            [PUBLISHER, "roles/owner", "roles/pubsub.admin"],
            ["roles/iam.serviceAccountUser", "roles/run.invoker"],
        ),
        ("subscription", ["roles/pubsub.subscriber", "roles/viewer"], [PUBLISHER, "roles/iam.serviceAccountUser"]),
        ("serviceAccount", ["roles/iam.serviceAccountUser", "roles/editor"], ["roles/pubsub.editor"]),
        ("project", ["roles/iam.serviceAccountUser", "roles/run.invoker", PUBLISHER], []),
        ("organization", ["roles/resourcemanager.projectCreator"], []),
    ],
)
def test_roles_allowed_by_kind(kind: str, allowed: list[str], refused: list[str]) -> None:
    for role in [*allowed, "projects/p/roles/r", "organizations/1/roles/r"]:
        assert bound((role, ["allUsers"]), kind=kind)
    for role in refused:
        with pytest.raises(InvalidArgument, match=f"^Role {role} is not supported for this resource.$"):
            bound((role, ["allUsers"]), kind=kind)


@pytest.mark.parametrize(
    "role", ["", "roles/none", "owner", "projects/p/roles/", "folders/1/roles/r", "roles/pubsub.*"]
)
def test_a_role_that_does_not_exist_is_refused(role: str) -> None:
    with pytest.raises(InvalidArgument, match="does not exist"):
        bound((role, ["allUsers"]))


def test_a_user_matches_its_domain_and_everybody() -> None:
    assert standing_for("user:Ada@Example.com") == {
        "user:ada@example.com",
        "domain:example.com",
        "allUsers",
        "allAuthenticatedUsers",
    }
    assert "domain:shop.iam.gserviceaccount.com" not in standing_for("serviceAccount:a@shop.iam.gserviceaccount.com")


def test_a_login_name_has_no_domain() -> None:
    assert standing_for("user:example.com") == {"user:example.com", "allUsers", "allAuthenticatedUsers"}


def test_the_address_of_a_service_agent_stands_for_the_agent_alone() -> None:
    agent = "serviceAccount:service-1@gcp-sa-pubsub.iam.gserviceaccount.com"
    account = "serviceAccount:pusher@shop.iam.gserviceaccount.com"
    everyone = {"allUsers", "allAuthenticatedUsers"}

    assert standing_for(agent, is_service_agent=True) == {agent, *everyone}
    assert standing_for(agent) == everyone
    assert standing_for(agent.replace("gcp-sa", "GCP-SA")) == everyone
    assert standing_for(account, is_service_agent=True) == everyone
    assert standing_for(account) == {account, *everyone}
    assert account not in standing_for(account.replace("shop", "SHOP"))


def test_if_your_project_was_created_on_or_before_april_8_2021_you_must_grant_the_role() -> None:
    assert not policies.is_automatic_agent(datetime(2021, 4, 8, 23, 59, 59, tzinfo=UTC))
    assert policies.is_automatic_agent(datetime(2021, 4, 9, tzinfo=UTC))


def test_the_service_agent_role_has_identical_permissions_to_token_creator_on_accounts() -> None:
    of_accounts = [
        {permission for permission in PREDEFINED[role].permissions if permission.startswith("iam.")}
        for role in ("roles/pubsub.serviceAgent", "roles/iam.serviceAccountTokenCreator")
    ]

    assert of_accounts[0] == of_accounts[1]
    assert "iam.serviceAccounts.getOpenIdToken" in of_accounts[0]


def test_the_predefined_roles_hold_the_permissions_of_the_specification() -> None:
    held = {name: role.permissions for name, role in PREDEFINED.items()}

    assert held[PUBLISHER] == {"pubsub.topics.publish"}
    assert held["roles/pubsub.subscriber"] == {
        "pubsub.subscriptions.consume",
        "pubsub.topics.attachSubscription",
        "pubsub.snapshots.seek",
    }
    assert not any(permission.endswith("IamPolicy") for permission in held["roles/pubsub.editor"])
    assert held["roles/pubsub.admin"] > held["roles/pubsub.editor"] > held[VIEWER]
    assert held["roles/owner"] > held["roles/editor"] > held["roles/viewer"] > held[VIEWER]
    assert set().union(*held.values()) <= PERMISSIONS
