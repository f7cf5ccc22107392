"""Who may do what: what is refused, with which error texts, and how soon a change takes effect."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import Error, connection
from django.test.utils import CaptureQueriesContext

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.iam import access, epoch, grants
from subscriptions.iam.methods import authorize
from subscriptions.iam.tree import get_resource
from subscriptions.models import Organization, Project, Topic
from subscriptions.models.iam import Policy
from subscriptions.services.projects import create_project
from tests.restapi import Answer, Api

ADA = "user:ada@example.com"
ORDERS = "projects/shop/topics/orders"
PUBLISH = "google.pubsub.v1.Publisher.Publish"
MESSAGE = {"messages": [{"data": "eA=="}]}


@pytest.fixture
def ada(api: Api, redis_url: str) -> Api:
    """Return Ada, who has no role yet; the topic `orders` and its subscription `audit` exist."""
    api.create("topics/orders")
    api.create("subscriptions/audit", {"topic": ORDERS})
    caller = Api()
    caller.sign_in("ada@example.com")
    return caller


def grant(resource: str, role: str, member: str = ADA) -> None:
    grants.grant_role(get_resource(resource), role=role, member=member)


def revoke(resource: str, role: str, member: str = ADA) -> None:
    grants.revoke_role(get_resource(resource), role=role, member=member)


def is_denied(answer: Answer) -> bool:
    return (answer.status, answer.error["status"]) == (403, "PERMISSION_DENIED")


def test_a_refusal_names_the_permission_and_the_resource(ada: Api) -> None:
    answer = ada.get("topics/orders")

    assert is_denied(answer)
    assert answer.error["message"] == (
        "Permission 'pubsub.topics.get' denied on resource "
        "'//pubsub.googleapis.com/projects/shop/topics/orders' (or it may not exist)."
    )
    assert answer.error["details"][0]["metadata"] == {"permission": "pubsub.topics.get", "resource": ORDERS}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "topics/{}", None),
        ("PATCH", "topics/{}", {"topic": {}, "updateMask": "labels"}),
        ("DELETE", "topics/{}", None),
        ("POST", "topics/{}:publish", MESSAGE),
        ("GET", "topics/{}/subscriptions", None),
        ("GET", "topics/{}:getIamPolicy", None),
        ("POST", "topics/{}:setIamPolicy", {"policy": {}}),
        ("POST", "topics/{}:testIamPermissions", {"permissions": ["pubsub.topics.get"]}),
        ("PUT", "topics/{}", {}),
    ],
)
def test_a_missing_resource_is_answered_like_a_forbidden_one(ada: Api, method: str, path: str, body: Any) -> None:
    exists = ada.call(method, path.format("orders"), body)
    missing = ada.call(method, path.format("absent"), body)
    elsewhere = ada.call(method, "/v1/projects/nowhere/" + path.format("orders"), body)

    assert exists.status == missing.status == elsewhere.status
    assert repr(missing.body) == repr(exists.body).replace("orders", "absent")
    assert repr(elsewhere.body) == repr(exists.body).replace("/shop/", "/nowhere/").replace(
        "projects/shop", "projects/nowhere"
    )
    assert not Project.objects.filter(project_id="nowhere").exists()
    assert not Topic.objects.filter(topic_id="absent").exists()


def test_callers_with_the_permission_learn_that_a_resource_does_not_exist(ada: Api) -> None:
    grant("projects/shop", "roles/pubsub.viewer")

    assert ada.get("topics/absent").status == 404
    assert ada.get("subscriptions/absent").status == 404
    assert is_denied(ada.post("topics/absent:publish", MESSAGE)), "she does not have this permission"


def test_a_role_on_one_topic_reveals_nothing_about_others(ada: Api) -> None:
    grant(ORDERS, "roles/pubsub.admin")

    assert is_denied(ada.get("topics/absent"))


def test_service_accounts_are_hidden_by_email_by_number_and_without_a_project(api: Api, ada: Api) -> None:
    account = api.post("serviceAccounts", {"accountId": "pusher"}).body
    for name in (account["email"], account["uniqueId"], "absent@shop.iam.gserviceaccount.com"):
        for project in ("shop", "-", "nowhere"):
            assert is_denied(ada.get(f"/v1/projects/{project}/serviceAccounts/{name}"))
    grant(account["name"], "roles/iam.serviceAccountUser")
    for name in (account["email"], account["uniqueId"]):
        for project in ("shop", "-"):
            assert ada.get(f"/v1/projects/{project}/serviceAccounts/{name}").status == 200


def test_attaching_needs_a_permission_on_the_topic_too(api: Api, ada: Api) -> None:
    api.create("/v1/projects/depot/topics/stock")
    stock = "projects/depot/topics/stock"
    grant("projects/shop", "roles/pubsub.editor")

    refused = ada.put("subscriptions/stock", {"topic": stock})
    unknown = ada.put("subscriptions/stock", {"topic": "projects/depot/topics/none"})
    grant(stock, "roles/pubsub.subscriber")

    assert is_denied(refused)
    assert "pubsub.topics.attachSubscription" in refused.error["message"]
    assert is_denied(unknown)
    assert ada.put("subscriptions/stock", {"topic": stock}).status == 200
    assert ada.put("subscriptions/orders", {"topic": ORDERS}).status == 200


@pytest.mark.any_database
@pytest.mark.parametrize("topic", [None, 5, "", "orders", ["x"], {"name": ORDERS}, "projects/shop/subscriptions/audit"])
def test_a_malformed_topic_name_is_refused_as_malformed(ada: Api, topic: Any) -> None:
    grant("projects/shop", "roles/pubsub.editor")

    assert ada.put("subscriptions/stock", {"topic": topic}).status in (400, 404)


def test_a_role_on_the_topic_does_not_allow_creating_subscriptions(ada: Api) -> None:
    grant(ORDERS, "roles/pubsub.admin")

    assert is_denied(ada.put("subscriptions/mine", {"topic": ORDERS}))


def test_only_the_topics_owner_may_detach(api: Api, ada: Api) -> None:
    grant("projects/shop/subscriptions/audit", "roles/pubsub.editor")
    refused = ada.post("subscriptions/audit:detach")
    grant(ORDERS, "roles/pubsub.editor")

    assert is_denied(refused)
    assert ada.post("subscriptions/audit:detach").status == 200


def test_dead_letters_go_only_where_their_sender_may_publish(api: Api, ada: Api) -> None:
    api.create("/v1/projects/depot/topics/stock")
    grant("projects/shop", "roles/pubsub.editor")
    body = {"topic": ORDERS, "deadLetterPolicy": {"deadLetterTopic": "projects/depot/topics/stock"}}

    refused = ada.put("subscriptions/mine", body)
    update = {"subscription": {"deadLetterPolicy": body["deadLetterPolicy"]}, "updateMask": "dead_letter_policy"}
    also_refused = ada.patch("subscriptions/audit", update)
    grant("projects/depot/topics/stock", "roles/pubsub.publisher")

    assert is_denied(refused)
    assert is_denied(also_refused)
    assert ada.put("subscriptions/mine", body).status == 200
    assert ada.patch("subscriptions/audit", update).status == 200


def test_a_caller_without_credentials_is_asked_for_credentials(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = ""

    answer = api.get("topics")

    assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")


def test_outside_of_development_policies_decide_about_the_anonymous_caller(api: Api, settings: Any) -> None:
    api.create("topics/orders")
    Policy.objects.all().delete()
    settings.DEVELOPMENT = False
    refused = api.get("topics/orders")
    grant(ORDERS, "roles/pubsub.viewer", "user:developer@localhost")

    assert is_denied(refused)
    assert api.get("topics/orders").status == 200


def test_without_the_setting_an_anonymous_caller_is_not_the_owner(settings: Any) -> None:
    settings.ANONYMOUS = ""

    assert not access.is_root(Principal(""))
    assert access.is_root(OPERATOR)


def test_a_superuser_may_do_everything_and_other_staff_what_policies_allow(ada: Api) -> None:
    root = Api()
    root.sign_in("root@example.com", is_superuser=True)

    assert root.get("topics/orders").status == 200
    assert is_denied(ada.get("topics/orders"))


def test_not_everybody_may_create_projects_without_a_parent(db: None, settings: Any) -> None:
    settings.DEVELOPMENT = False
    organization = Organization.objects.create(display_name="Example")
    ada = Principal(ADA)
    for parent in (None, organization):
        with pytest.raises(PermissionDenied, match="resourcemanager.projects.create"):
            create_project(project_id="shop", parent=parent, caller=ada)
    grant(organization.name, "roles/resourcemanager.projectCreator")

    project = create_project(project_id="shop", parent=organization, caller=ada)

    assert grants.get_policy(project)["bindings"][0] == {"role": "roles/owner", "members": [ADA]}
    authorize(ada, "google.pubsub.v1.Publisher.CreateTopic", {"name": ORDERS})


def test_a_revoked_grant_counts_at_once_in_the_process_that_revokes(ada: Api) -> None:
    grant(ORDERS, "roles/pubsub.publisher")
    assert ada.post("topics/orders:publish", MESSAGE).status == 200

    revoke(ORDERS, "roles/pubsub.publisher")

    assert is_denied(ada.post("topics/orders:publish", MESSAGE))


def test_other_processes_keep_a_decision_for_a_second_without_a_query(
    ada: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    for cache in (access.decisions, access._inherited, access._bound):
        monkeypatch.setattr(cache, "_clock", lambda: now[0])
    grant(ORDERS, "roles/pubsub.publisher")
    authorize(Principal(ADA), PUBLISH, {"topic": ORDERS})
    Policy.objects.filter(kind="topic").update(bindings=[])  # as in another process: no signal is sent

    with CaptureQueriesContext(
        connection,
    ) as queries:
        authorize(Principal(ADA), PUBLISH, {"topic": ORDERS})
    now[0] += epoch.KEPT_SECONDS

    assert len(queries) == 0
    with pytest.raises(PermissionDenied):
        authorize(Principal(ADA), PUBLISH, {"topic": ORDERS})


def test_a_refusal_is_not_remembered_past_a_grant(ada: Api) -> None:
    assert is_denied(ada.get("topics/orders"))

    grant("projects/shop", "roles/viewer")

    assert ada.get("topics/orders").status == 200


def test_the_policies_are_read_once_for_many_permissions(ada: Api) -> None:
    """A page of the console asks for some twenty permissions, and there may be many policies."""
    grant(ORDERS, "roles/pubsub.viewer")
    caller = Principal(ADA)
    access.forget_decisions()
    with CaptureQueriesContext(connection) as queries:
        viewable = access.resources_granting(caller, "pubsub.topics.get")
        deletable = access.resources_granting(caller, "pubsub.topics.delete")
    assert len([query for query in queries.captured_queries if "subscriptions_policy" in query["sql"]]) == 1
    assert viewable == {("topic", Topic.objects.get().pk)}
    assert deletable == set()
    revoke(ORDERS, "roles/pubsub.viewer")
    assert access.resources_granting(caller, "pubsub.topics.get") == set()


@pytest.mark.django_db(transaction=True)
def test_a_change_that_others_cannot_be_told_is_answered_when_they_have_forgotten_what_they_kept(
    ada: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(epoch, "sleep", waits.append)

    def refuse_epoch(execute: Any, sql: str, *others: Any) -> Any:
        if "accessepoch" in sql:
            raise Error("the disk is full")
        return execute(sql, *others)

    with connection.execute_wrapper(refuse_epoch):
        grant(ORDERS, "roles/pubsub.publisher")
    assert waits == [epoch.KEPT_SECONDS]


def test_a_page_with_a_row_of_a_replica_asks_the_primary_where_its_project_is(ada: Api) -> None:
    first, second = (Organization.objects.create(number=number) for number in (7, 8))
    project = Project.objects.get(project_id="shop")
    project.organization = first
    project.save()
    grant("organizations/8", "roles/pubsub.viewer")
    caller = Principal(member=ADA)
    # Given a topic as a replica still shows it
    topic = Topic.objects.select_related("project").get(topic_id="orders")
    topic._state.db = topic.project._state.db = "replica"
    assert not access.allowed(caller, "pubsub.topics.get", topic)
    # When its project is moved
    project.organization = second
    project.save()
    access.forget_decisions()
    # Then the new place counts
    assert access.allowed(caller, "pubsub.topics.get", topic)
