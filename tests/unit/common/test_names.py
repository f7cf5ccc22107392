"""Resource names (docs/spec.md#resource-names)."""

from __future__ import annotations

import pytest

from pushhub.common import names
from pushhub.common.errors import InvalidArgument


@pytest.mark.parametrize("topic_id", ["abc", "A-b_c.d~e+f%g", "a" * 255, "xgoog", "go-og"])
def test_a_topic_name_is_parsed_into_its_parts(topic_id: str) -> None:
    name = names.topic_name("shop", topic_id)

    assert name == f"projects/shop/topics/{topic_id}"
    assert names.parse_topic(name) == ("shop", topic_id)


@pytest.mark.parametrize(
    "topic_id", ["", "ab", "a" * 256, "1abc", "-abc", "googabc", "GooGle", "a b", "a/b", "a:b", "añb", "abc\n", "abc\0"]
)
def test_a_bad_id_is_refused_in_productions_words(topic_id: str) -> None:
    name = f"projects/shop/topics/{topic_id}"

    with pytest.raises(InvalidArgument) as caught:
        names.parse_topic(name)

    assert caught.value.field == "name"
    assert caught.value.message == (
        f"Invalid resource name given (name={name}). "
        "Refer to https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information."
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "abc",
        "projects/shop",
        "projects/shop/subscriptions/abc",
        "projects//topics/abc",
        "projects/-shop/topics/abc",
        "projects/shop/topics/abc/def",
        "_deleted-topic_",
        "//projects/shop/topics/abc",
    ],
)
def test_malformed_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="Invalid resource name given"):
        names.parse_topic(name, field="topic")


def test_a_huge_name_does_not_come_back_whole() -> None:
    with pytest.raises(InvalidArgument) as caught:
        names.parse_topic("projects/shop/topics/" + "a" * 1_000_000)

    assert len(caught.value.message) < 1000


@pytest.mark.parametrize("project", ["p", "my_project", "123456789012", "example.com:shop"])
def test_projects_are_ids_or_numbers(project: str) -> None:
    assert names.parse_project(f"projects/{project}") == project


@pytest.mark.parametrize("project", ["porto sentido", "Test", "a.b", "123", "google", "a" * 100, "{}|^`\\"])
def test_the_emulator_takes_any_project_id(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_emulated", True)

    names.check_new_project(project, field="projectId")
    assert names.parse_topic(f"projects/{project}/topics/orders") == (project, "orders")


@pytest.mark.parametrize(
    "project", ["", "a/b", " a", "a ", "a\n", "a\0b", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a" * 101]
)
def test_the_emulator_refuses_what_no_name_can_carry(project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_emulated", True)

    with pytest.raises(InvalidArgument):
        names.check_new_project(project, field="projectId")
    with pytest.raises(InvalidArgument):
        names.parse_project(f"projects/{project}")


@pytest.mark.parametrize("project", ["p", "my_project", "example.com:shop", "a" * 100, "3-shops", "a.b-c.com:x"])
def test_the_id_of_a_new_project_is_in_lower_case(project: str) -> None:
    names.check_new_project(project, field="projectId")
    assert names.parse_project(f"projects/{project}") == project


@pytest.mark.parametrize(
    "project",
    [
        "",
        "Shop",
        "SHOP",
        "123456789012",
        "a.b",
        "a:b",
        "example.com:1",
        "a-",
        "-a",
        "a" * 101,
        "p\n",
        "a b",
        "ä",
        "a::b",
    ],
)
def test_the_id_of_a_new_project_is_no_number_and_shares_no_domain_with_another(project: str) -> None:
    with pytest.raises(InvalidArgument, match="Invalid project id given") as caught:
        names.check_new_project(project, field="projectId")

    assert caught.value.field == "projectId"


@pytest.mark.parametrize(
    "project",
    [
        "gcp-sa-pubsub",
        "GCP-SA-PUBSUB",
        "gcp-sa-",
        "example.com:gcp-sa-pubsub",
        "appspot",
        "developer",
        "cloudservices",
        "compute-system",
        "google.com:shop",
        "my-google-shop",
        "iam.gserviceaccount.com:x",
    ],
)
def test_the_ids_of_googles_own_projects_are_reserved(project: str) -> None:
    with pytest.raises(InvalidArgument, match="is reserved"):
        names.check_new_project(project, field="projectId")


def test_a_service_agent_is_named_by_the_number_of_its_project() -> None:
    email = names.service_agent_email(4711)

    assert email == "service-4711@gcp-sa-pubsub.iam.gserviceaccount.com"
    assert names.service_agent_number(email) == 4711
    assert names.is_agent_email(email)


@pytest.mark.parametrize(
    "email",
    [
        "4711@gcp-sa-pubsub.iam.gserviceaccount.com",
        "service-04711@gcp-sa-pubsub.iam.gserviceaccount.com",
        "service-4711@gcp-sa-other.iam.gserviceaccount.com",
        "SERVICE-4711@GCP-SA-PUBSUB.iam.gserviceaccount.com",
        "service-٤٧١١@gcp-sa-pubsub.iam.gserviceaccount.com",
    ],
)
def test_other_addresses_of_the_agent_domain_belong_to_no_account(email: str) -> None:
    assert names.service_agent_number(email) is None
    assert names.is_agent_email(email)
    assert not names.is_agent_email("service-4711@shop.iam.gserviceaccount.com")


def test_a_service_account_lives_under_its_project() -> None:
    assert names.service_account_email("shop", "pusher") == "pusher@shop.iam.gserviceaccount.com"
    assert (
        names.service_account_email("example.com:shop", "pusher") == "pusher@shop.example.com.iam.gserviceaccount.com"
    )


@pytest.mark.parametrize(
    ("account_id", "is_good"),
    [("pusher", True), ("a-1-b-2", True), ("short", False), ("a" * 31, False), ("ends-in-", False), ("Upper-1", False)],
)
def test_account_ids_follow_iam(account_id: str, is_good: bool) -> None:
    assert bool(names.ACCOUNT_PATTERN.fullmatch(account_id)) is is_good
