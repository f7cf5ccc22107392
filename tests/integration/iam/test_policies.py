"""getIamPolicy, setIamPolicy and testIamPermissions over REST, and their effect."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pushhub.common.errors import Aborted
from pushhub.common.principals import Principal
from subscriptions.iam import access, grants
from subscriptions.iam.tree import get_resource
from subscriptions.models import Folder, Organization, Project
from subscriptions.models.iam import Group, Policy
from tests.restapi import Api

ADA = "user:ada@example.com"
PUBLISHER = {"role": "roles/pubsub.publisher", "members": [ADA]}


@pytest.fixture
def ada(api: Api) -> Api:
    """Return Ada, who has no role yet; the project `shop` and its topic `orders` exist."""
    api.create("topics/orders")
    api.create("subscriptions/audit", {"topic": "projects/shop/topics/orders"})
    caller = Api()
    caller.sign_in("ada@example.com")
    return caller


def grant(resource: str, role: str, member: str = ADA) -> None:
    grants.grant_role(get_resource(resource), role=role, member=member)


def test_an_unset_policy_reads_as_empty_with_etag_acab(api: Api) -> None:
    api.create("topics/orders")

    assert api.get("topics/orders:getIamPolicy").body == {"etag": "ACAB"}
    assert api.get("topics/orders:getIamPolicy?options.requestedPolicyVersion=3").body == {"etag": "ACAB"}
    for bad in ("2", "x", "-1"):
        assert api.get(f"topics/orders:getIamPolicy?options.requestedPolicyVersion={bad}").status == 400


def test_a_policy_is_replaced_as_a_whole(api: Api) -> None:
    api.create("topics/orders")
    first = api.post("topics/orders:setIamPolicy", {"policy": {"bindings": [PUBLISHER]}})
    viewer = {"role": "roles/pubsub.viewer", "members": ["allAuthenticatedUsers"]}
    second = api.post("topics/orders:setIamPolicy", {"policy": {"bindings": [viewer], "etag": first.body["etag"]}})

    assert first.body == {"version": 1, "etag": first.body["etag"], "bindings": [PUBLISHER]}
    assert second.body["bindings"] == [viewer]
    assert second.body["etag"] != first.body["etag"]
    assert api.get("topics/orders:getIamPolicy").body == second.body


def test_a_stale_etag_is_a_conflict_and_changes_nothing(api: Api) -> None:
    api.create("topics/orders")
    old = api.get("topics/orders:getIamPolicy").body["etag"]
    api.post("topics/orders:setIamPolicy", {"policy": {"bindings": [PUBLISHER], "etag": old}})

    answer = api.post("topics/orders:setIamPolicy", {"policy": {"etag": old}})

    assert (answer.status, answer.error["status"]) == (409, "ABORTED")
    assert answer.error["message"].startswith("There were concurrent policy changes.")
    assert api.get("topics/orders:getIamPolicy").body["bindings"] == [PUBLISHER]
    assert api.post("topics/orders:setIamPolicy", {"policy": {}}).status == 200, "without an etag the last write wins"
    assert "bindings" not in api.get("topics/orders:getIamPolicy").body


def test_two_first_writes_of_one_policy_do_not_both_win(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.create("topics/orders")
    topic = get_resource("projects/shop/topics/orders")
    unstored = Policy(kind="topic", resource_pk=topic.pk, generation=0)
    grants.set_policy(topic, {"policy": {"bindings": [PUBLISHER]}})
    monkeypatch.setattr(grants, "_row", lambda *_, **__: unstored)

    with pytest.raises(Aborted):
        grants.set_policy(topic, {"policy": {}})


def test_the_members_of_a_policy_are_looked_up_before_its_transaction(api: Api) -> None:
    """1,500 of them kept publishes and everything else that writes to SQLite waiting for 3.5 s on a busy machine."""
    api.create("topics/orders")
    topic = get_resource("projects/shop/topics/orders")
    accounts = [f"serviceAccount:a@shop-{number}.iam.gserviceaccount.com" for number in range(30)]
    bindings = [{"role": "roles/pubsub.viewer", "members": accounts}]

    with CaptureQueriesContext(connection) as captured:
        grants.set_policy(topic, {"policy": {"bindings": bindings}})

    statements = [query["sql"] for query in captured]
    began = next(place for place, sql in enumerate(statements) if sql.startswith("SAVEPOINT"))
    assert began > len(accounts)
    assert len(statements) - began < 10


def test_a_policy_that_changes_while_members_are_looked_up_is_a_conflict(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create("topics/orders")
    topic = get_resource("projects/shop/topics/orders")
    Policy.objects.create(kind="topic", resource_pk=topic.pk, generation=1)
    etag = grants.get_policy(topic)["etag"]

    def change(*_: Any, **__: Any) -> None:
        Policy.objects.update(generation=2)

    monkeypatch.setattr(grants, "_check_new", change)

    with pytest.raises(Aborted):
        grants.set_policy(topic, {"policy": {"bindings": [PUBLISHER], "etag": etag}})


def test_members_are_checked_again_against_a_policy_that_changed_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known when the look-ups began may have been removed, and is new then."""
    api.create("topics/orders")
    topic = get_resource("projects/shop/topics/orders")
    Policy.objects.create(kind="topic", resource_pk=topic.pk, bindings=[PUBLISHER], generation=1)
    known_at_checks: list[Any] = []

    def change(*_: Any, known: Any, **__: Any) -> None:
        known_at_checks.append(known)
        Policy.objects.update(bindings=[])

    monkeypatch.setattr(grants, "_check_new", change)
    grants.set_policy(topic, {"policy": {"bindings": [PUBLISHER]}})

    assert known_at_checks == [[PUBLISHER], []]


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "policy"),
        ({"policy": {"version": 2}}, "policy.version"),
        ({"policy": {"bindings": [{"role": "roles/none"}]}}, "policy.bindings[0].role"),
        ({"policy": {"bindings": [{**PUBLISHER, "members": ["ada"]}]}}, "policy.bindings[0].members[0]"),
        (
            {"policy": {"bindings": [{**PUBLISHER, "members": ["serviceAccount:no@shop.iam.gserviceaccount.com"]}]}},
            "policy.bindings",
        ),
        ({"policy": {"bindings": [{**PUBLISHER, "role": "projects/shop/roles/none"}]}}, "policy.bindings"),
        ({"policy": {}, "updateMask": "members"}, "updateMask"),
        ({"policy": {"etag": "!"}}, "policy.etag"),
        ({"policy": []}, "policy"),
    ],
)
def test_a_bad_policy_is_refused_by_field(api: Api, body: Any, field: str) -> None:
    api.create("topics/orders")

    answer = api.post("topics/orders:setIamPolicy", body)

    assert (answer.status, answer.fields) == (400, [field])
    assert api.get("topics/orders:getIamPolicy").body == {"etag": "ACAB"}


@pytest.mark.parametrize(
    ("path", "field", "request_body"),
    [
        ("topics/orders:setIamPolicy", "resource", {"policy": {}}),
        ("topics/orders:testIamPermissions", "resource", {"permissions": ["pubsub.topics.get"]}),
        ("/v1/projects/shop:getIamPolicy", "resource", {}),
        ("schemas:validate", "parent", {"schema": {"type": "AVRO", "definition": '"int"'}}),
        ("schemas:validateMessage", "parent", {"schema": {"type": "AVRO", "definition": '"int"'}, "message": "MQ=="}),
    ],
)
def test_a_body_that_names_another_resource_is_refused(api: Api, path: str, field: str, request_body: Any) -> None:
    """As with all other methods; what the body named here was ignored."""
    api.create("topics/orders")
    answer = api.post(path, {**request_body, field: "projects/other/topics/orders"})
    assert (answer.status, answer.fields) == (400, [field])
    assert "must agree with the one in the URL" in answer.error["message"]


def test_audit_configs_are_kept_if_the_mask_names_them(api: Api) -> None:
    api.create("topics/orders")
    config = {"service": "pubsub.googleapis.com", "auditLogConfigs": [{"logType": "DATA_READ"}]}
    answer = api.post(
        "/v1/projects/shop:setIamPolicy", {"policy": {"auditConfigs": [config]}, "updateMask": "auditConfigs"}
    )

    assert answer.status == 200
    assert answer.body["auditConfigs"] == [config]
    assert answer.body["bindings"], "the mask leaves them alone"


def test_everything_in_the_tree_has_a_policy(api: Api, ada: Api) -> None:
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    organization = Organization.objects.create(display_name="Example")
    folder = Folder.objects.create(display_name="Shops", organization=organization)
    for name, read in {
        organization.name: api.post,
        folder.name: api.post,
        "projects/shop": api.post,
        "projects/shop/topics/orders": api.get,
        "projects/shop/subscriptions/audit": api.get,
        "projects/shop/serviceAccounts/pusher@shop.iam.gserviceaccount.com": api.post,
    }.items():
        viewer = {"role": "roles/viewer", "members": [ADA]}
        set_ = api.post(f"/v1/{name}:setIamPolicy", {"policy": {"bindings": [viewer]}})
        assert set_.status == 200, name
        assert read(f"/v1/{name}:getIamPolicy").body == set_.body
        held = ada.post(
            f"/v1/{name}:testIamPermissions", {"permissions": ["pubsub.topics.get", "pubsub.topics.publish"]}
        )
        assert held.body == {"permissions": ["pubsub.topics.get"]}, name


def test_permissions_are_inherited_from_the_organization_down_to_the_topic(ada: Api) -> None:
    organization = Organization.objects.create(display_name="Example")
    outer = Folder.objects.create(display_name="Outer", organization=organization)
    inner = Folder.objects.create(display_name="Inner", folder=outer)
    Project.objects.filter(project_id="shop").update(folder=inner)
    for above in (organization, outer, inner):
        assert ada.get("topics/orders").status == 403
        grant(above.name, "roles/pubsub.viewer")
        assert ada.get("topics/orders").status == 200
        grants.revoke_role(above, role="roles/pubsub.viewer", member=ADA)


def test_a_grant_on_one_topic_does_not_cover_others(api: Api, ada: Api) -> None:
    api.create("topics/returns")
    grant("projects/shop/topics/orders", "roles/pubsub.viewer")

    assert ada.get("topics/orders").status == 200
    assert ada.get("topics/returns").status == 403
    assert ada.get("topics").status == 403


@pytest.mark.parametrize(
    "member",
    [ADA, "domain:example.com", "group:crew@example.com", "group:all@example.com", "allUsers", "allAuthenticatedUsers"],
)
def test_members_of_each_kind_are_recognised(ada: Api, member: str) -> None:
    crew = Group.objects.create(email="crew@example.com")
    crew.members.create(member=ADA)
    everybody = Group.objects.create(email="all@example.com")
    everybody.members.create(member="group:crew@example.com")
    crew.members.create(member="group:all@example.com")  # a cycle, which must end

    assert ada.get("topics/orders").status == 403
    grant("projects/shop", "roles/viewer", member)

    assert ada.get("topics/orders").status == 200


def test_a_former_member_of_a_group_loses_its_roles(ada: Api) -> None:
    crew = Group.objects.create(email="crew@example.com")
    crew.members.create(member=ADA)
    grant("projects/shop", "roles/viewer", "group:crew@example.com")
    assert ada.get("topics/orders").status == 200

    crew.members.all().delete()

    assert ada.get("topics/orders").status == 403


def test_a_recreated_topic_does_not_inherit_the_old_policy(api: Api, ada: Api) -> None:
    grant("projects/shop/topics/orders", "roles/pubsub.viewer")
    api.delete("topics/orders")
    assert not Policy.objects.filter(kind="topic").exists()
    api.create("topics/orders")

    assert ada.get("topics/orders").status == 403
    assert api.get("topics/orders:getIamPolicy").body == {"etag": "ACAB"}


def test_a_recreated_account_does_not_inherit_the_grants_of_the_deleted_one(api: Api) -> None:
    api.create("topics/orders")
    account = api.post("serviceAccounts", {"accountId": "pusher"}).body
    email, uid = account["email"], account["uniqueId"]
    bindings = [{"role": "roles/pubsub.publisher", "members": [f"serviceAccount:{email}"]}]
    api.post("topics/orders:setIamPolicy", {"policy": {"bindings": bindings}})
    caller = Principal(f"serviceAccount:{email}")
    topic = get_resource("projects/shop/topics/orders")
    assert access.allowed(caller, "pubsub.topics.publish", topic)

    api.delete(f"serviceAccounts/{email}")
    policy = api.get("topics/orders:getIamPolicy").body
    assert policy["bindings"][0]["members"] == [f"deleted:serviceAccount:{email}?uid={uid}"]
    assert api.post("topics/orders:setIamPolicy", {"policy": policy}).status == 200, "it may stay"
    anew = api.post("serviceAccounts", {"accountId": "pusher"}).body
    assert not access.allowed(caller, "pubsub.topics.publish", topic)

    api.delete(f"serviceAccounts/{anew['email']}")
    assert api.post(f"serviceAccounts/{uid}:undelete").status == 200
    assert api.get("topics/orders:getIamPolicy").body["bindings"] == bindings
    assert access.allowed(caller, "pubsub.topics.publish", topic)


def test_the_creator_owns_a_project_and_its_service_agent_has_its_role(api: Api) -> None:
    api.create("topics/orders")
    agent = Project.objects.get().service_agent

    assert api.post("/v1/projects/shop:getIamPolicy").body["bindings"] == [
        {"role": "roles/owner", "members": ["user:developer@localhost"]},
        {"role": "roles/pubsub.serviceAgent", "members": [f"serviceAccount:{agent}"]},
    ]


def test_test_iam_permissions_takes_at_most_100_without_wildcards(ada: Api) -> None:
    assert ada.post("topics/orders:testIamPermissions", {"permissions": ["pubsub.topics.get"] * 100}).status == 200
    for bad in (["pubsub.topics.get"] * 101, ["pubsub.*"], ["pubsub.topics.*"], [""]):
        assert ada.post("topics/orders:testIamPermissions", {"permissions": bad}).status == 400


def test_test_iam_permissions_does_not_reveal_what_exists(api: Api, ada: Api) -> None:
    asked = {"permissions": ["pubsub.topics.get"]}

    assert ada.post("topics/orders:testIamPermissions", asked).body == {}
    assert ada.post("topics/none:testIamPermissions", asked).body == {}
    assert ada.post("/v1/projects/none/topics/none:testIamPermissions", asked).body == {}
    assert api.post("topics/none:testIamPermissions", asked).status == 404


def test_custom_roles_of_a_project(api: Api, ada: Api) -> None:
    body = {"roleId": "reader", "role": {"title": "Reader", "includedPermissions": ["pubsub.topics.get"]}}
    role = api.post("roles", body).body
    assert role["name"] == "projects/shop/roles/reader"
    assert role["includedPermissions"] == ["pubsub.topics.get"]
    grant("projects/shop/topics/orders", role["name"])
    assert ada.get("topics/orders").status == 200

    patched = api.patch(
        "roles/reader?updateMask=includedPermissions", {"includedPermissions": ["pubsub.topics.publish"]}
    )
    assert patched.body["title"] == "Reader"
    assert ada.get("topics/orders").status == 403
    assert api.patch("roles/reader", {"etag": role["etag"], "title": "x"}).status == 409

    assert api.delete("roles/reader").body["deleted"] is True
    assert api.get("roles").body == {}
    assert api.get("roles?showDeleted=true").body["roles"][0]["name"] == role["name"]
    assert api.post("roles", body).error["status"] == "FAILED_PRECONDITION"
    assert ada.post("topics/orders:testIamPermissions", {"permissions": ["pubsub.topics.publish"]}).body == {}
    assert api.post("roles/reader:undelete").status == 200
    assert ada.post("topics/orders:testIamPermissions", {"permissions": ["pubsub.topics.publish"]}).body != {}


@pytest.mark.any_database
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"roleId": "a"},
        {"roleId": "a-b-c"},
        {"roleId": "reader", "role": {"includedPermissions": ["pubsub.topics.none"]}},
        {"roleId": "reader", "role": {"stage": "NONE"}},
    ],
)
def test_a_bad_custom_role_is_refused(api: Api, body: dict[str, Any]) -> None:
    assert api.post("roles", body).status == 400


def test_custom_roles_of_an_organization_count_below_it_and_those_of_other_projects_do_not(api: Api, ada: Api) -> None:
    organization = Organization.objects.create(display_name="Example")
    Project.objects.filter(project_id="shop").update(organization=organization)
    body = {"roleId": "reader", "role": {"includedPermissions": ["pubsub.topics.get"]}}
    role = api.post(f"/v1/{organization.name}/roles", body).body["name"]
    assert api.get(f"/v1/{role}").body["name"] == role
    other = api.post("/v1/projects/other/roles", body).body["name"]

    refused = api.post("topics/orders:setIamPolicy", {"policy": {"bindings": [{"role": other, "members": [ADA]}]}})
    grant("projects/shop/topics/orders", role)

    assert refused.status == 400
    assert ada.get("topics/orders").status == 200


def test_predefined_roles_are_listed_with_their_permissions_on_demand(ada: Api) -> None:
    short = ada.get("/v1/roles").body["roles"]
    full = ada.get("/v1/roles?view=FULL").body["roles"]

    assert {role["name"] for role in short} >= {"roles/owner", "roles/pubsub.publisher", "roles/run.invoker"}
    assert "includedPermissions" not in short[0]
    assert all(role["includedPermissions"] for role in full)
    assert ada.get("/v1/roles/pubsub.publisher").body["includedPermissions"] == ["pubsub.topics.publish"]
    assert ada.get("/v1/roles/none").status == 404


def test_a_member_is_renamed_in_policies_and_groups_and_nowhere_else(api: Api) -> None:
    api.create("topics/orders")
    for account in ("pusher", "pusher2"):
        assert api.post("serviceAccounts", {"accountId": account}).status == 200
    old, other = (f"serviceAccount:{name}@shop.iam.gserviceaccount.com" for name in ("pusher", "pusher2"))
    new = "deleted:serviceAccount:pusher@shop.iam.gserviceaccount.com?uid=123"
    grant("projects/shop/topics/orders", "roles/pubsub.publisher", old)
    grant("projects/shop/topics/orders", "roles/pubsub.publisher", other)
    crew = Group.objects.create(email="crew@example.com")
    crew.members.create(member=old)
    before = api.get("topics/orders:getIamPolicy").body

    grants.rename_member(old=old, new=new)

    after = api.get("topics/orders:getIamPolicy").body
    assert after["bindings"] == [{"role": "roles/pubsub.publisher", "members": [new, other]}]
    assert after["etag"] != before["etag"]
    assert [row.member for row in crew.members.all()] == [new]
    assert api.post("topics/orders:setIamPolicy", {"policy": after}).status == 200, "it may stay"
    added = {"bindings": [{"role": "roles/pubsub.viewer", "members": [new.replace("123", "124")]}]}
    assert api.post("topics/orders:setIamPolicy", {"policy": added}).status == 400, "and not be added"


@pytest.mark.parametrize(
    "member",
    [
        "group:crew@elsewhere.example",
        "serviceAccount:pusher@elsewhere.iam.gserviceaccount.com",
        "serviceAccount:service-123@gcp-sa-eventarc.iam.gserviceaccount.com",
        "serviceAccount:elsewhere@appspot.gserviceaccount.com",
        "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/subject/Ada",
        "principalSet://iam.googleapis.com/locations/global/workforcePools/pool/*",
        "projectOwner:shop",
        "projectEditor:example.com:shop",
        "projectViewer:elsewhere",
        "deleted:user:ada@example.com?uid=123",
        "deleted:group:crew@elsewhere.example?uid=123",
        "deleted:serviceAccount:pusher@elsewhere.iam.gserviceaccount.com?uid=123",
    ],
)
def test_members_that_others_hold_are_kept_as_they_are_written(api: Api, member: str) -> None:
    api.create("topics/orders")
    Group.objects.create(email="crew@example.com")
    bindings = [{"role": "roles/pubsub.publisher", "members": [member]}]
    assert api.post("topics/orders:setIamPolicy", {"policy": {"bindings": bindings}}).status == 200
    assert api.get("topics/orders:getIamPolicy").body["bindings"] == bindings


@pytest.mark.parametrize(
    "member",
    [
        "group:nobody@example.com",
        "serviceAccount:nobody@shop.iam.gserviceaccount.com",
        "serviceAccount:nobody@team.example.com.iam.gserviceaccount.com",
        "serviceAccount:service-123@gcp-sa-pubsub.iam.gserviceaccount.com",
        "deleted:group:crew@example.com?uid=123",
        "deleted:serviceAccount:pusher@shop.iam.gserviceaccount.com?uid=123",
    ],
)
def test_members_of_our_own_domains_must_exist(api: Api, member: str) -> None:
    api.create("topics/orders")
    Project.objects.create(project_id="example.com:team")
    Group.objects.create(email="crew@example.com")
    bindings = [{"role": "roles/pubsub.publisher", "members": [member]}]
    answer = api.post("topics/orders:setIamPolicy", {"policy": {"bindings": bindings}})
    assert (answer.status, answer.fields) == (400, ["policy.bindings"])
    assert "does not exist" in answer.error["message"]
