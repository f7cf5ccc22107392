"""A caller learns whether another tenant's resource exists only if the caller may use it, whatever the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from django.test import Client
from google.protobuf.json_format import ParseDict
from google.pubsub_v1.types import pubsub, schema

from deliveries.retention import snapshots
from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.iam import custom_roles, grants
from subscriptions.iam.methods import METHODS, authorize
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.models import Folder, Organization, Project, Snapshot, Subscription, Topic
from subscriptions.models.iam import Group, Policy
from subscriptions.services import schemas, service_accounts
from subscriptions.services.projects import create_project
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.integration.admin.test_resources import errors
from tests.integration.iam.test_access_table import names_for
from tests.ports import wait_for
from tests.restapi import Api, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

EVE = "user:eve@example.com"
#: Eve's roles on her own project `shop`: everything except acting as its accounts and seeing them.
OWN_ROLES = ("roles/pubsub.admin", "roles/resourcemanager.projectIamAdmin")
REVISION = "12345678"
SERVICE_ACCOUNT = "pushConfig.oidcToken.serviceAccountEmail"
AVRO = {"type": "AVRO", "definition": '{"type": "record", "name": "R", "fields": []}'}


@dataclass(frozen=True)
class Reference:
    """A request that refers to a resource of the project `depot`, or to one that doesn't exist.

    `request` is the request in proto JSON, which gRPC gets unchanged; `{}` in it stands for the resource's name.
    """

    method: str
    rest: tuple[str, str]
    request: dict[str, Any]
    existing: str
    missing: str
    #: The role that lets Eve use the resource that exists, and the resource that it is granted on.
    role: str
    level: str = "projects/depot"
    #: Fields that REST has in the address only.
    in_address: tuple[str, ...] = ()


def with_schema(settings: dict[str, str]) -> dict[str, Any]:
    return {"schemaSettings": {"encoding": "JSON", **settings}}


def subscription(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": f"projects/shop/subscriptions/{name}", **fields}


def account(name: str) -> str:
    return f"{name}@shop.iam.gserviceaccount.com"


ORDERS = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
LETTERS = {"deadLetterPolicy": {"deadLetterTopic": "{}"}}
SIGNED = {"pushConfig": {"pushEndpoint": "https://a.example", "oidcToken": {"serviceAccountEmail": "{}"}}}
DEPOT_TOPIC = ("projects/depot/topics/stock", "projects/depot/topics/absent")
DEPOT_SCHEMA = ("projects/depot/schemas/goods", "projects/depot/schemas/absent")
ACCOUNTS = (account("pusher"), account("absent"))
EDITOR, USER = "roles/pubsub.editor", "roles/iam.serviceAccountUser"
PUBLISHER, SUBSCRIBER, SCHEMAS = (
    f"google.pubsub.v1.{service}." for service in ("Publisher", "Subscriber", "SchemaService")
)

REFERENCES = {
    "a new topic's schema": Reference(
        PUBLISHER + "CreateTopic",
        ("PUT", "topics/new"),
        {"name": "projects/shop/topics/new", **with_schema({"schema": "{}"})},
        *DEPOT_SCHEMA,
        EDITOR,
    ),
    "a topic's schema": Reference(
        PUBLISHER + "UpdateTopic",
        ("PATCH", "topics/orders"),
        {"topic": {"name": ORDERS, **with_schema({"schema": "{}"})}, "updateMask": "schemaSettings"},
        *DEPOT_SCHEMA,
        EDITOR,
    ),
    "a new topic's first revision": Reference(
        PUBLISHER + "CreateTopic",
        ("PUT", "topics/new"),
        {"name": "projects/shop/topics/new", **with_schema({"schema": DEPOT_SCHEMA[0], "firstRevisionId": "{}"})},
        "REVISION",
        REVISION,
        EDITOR,
    ),
    "a topic's last revision": Reference(
        PUBLISHER + "UpdateTopic",
        ("PATCH", "topics/orders"),
        {
            "topic": {"name": ORDERS, **with_schema({"schema": DEPOT_SCHEMA[0], "lastRevisionId": "{}"})},
            "updateMask": "schemaSettings",
        },
        "REVISION",
        REVISION,
        EDITOR,
    ),
    "a new subscription's topic": Reference(
        SUBSCRIBER + "CreateSubscription",
        ("PUT", "subscriptions/new"),
        subscription("new", topic="{}"),
        *DEPOT_TOPIC,
        EDITOR,
    ),
    "a new subscription's dead-letter topic": Reference(
        SUBSCRIBER + "CreateSubscription",
        ("PUT", "subscriptions/new"),
        subscription("new", topic=ORDERS, **LETTERS),
        *DEPOT_TOPIC,
        EDITOR,
    ),
    "a subscription's dead-letter topic": Reference(
        SUBSCRIBER + "UpdateSubscription",
        ("PATCH", "subscriptions/worker"),
        {"subscription": subscription("worker", **LETTERS), "updateMask": "deadLetterPolicy"},
        *DEPOT_TOPIC,
        EDITOR,
    ),
    "a dead-letter topic alone": Reference(
        SUBSCRIBER + "UpdateSubscription",
        ("PATCH", "subscriptions/worker"),
        {"subscription": subscription("worker", **LETTERS), "updateMask": "deadLetterPolicy.deadLetterTopic"},
        *DEPOT_TOPIC,
        EDITOR,
    ),
    "a new subscription's account": Reference(
        SUBSCRIBER + "CreateSubscription",
        ("PUT", "subscriptions/new"),
        subscription("new", topic=ORDERS, **SIGNED),
        *ACCOUNTS,
        USER,
        "projects/shop",
    ),
    "a subscription's account": Reference(
        SUBSCRIBER + "UpdateSubscription",
        ("PATCH", "subscriptions/worker"),
        {"subscription": subscription("worker", **SIGNED), "updateMask": "pushConfig"},
        *ACCOUNTS,
        USER,
        "projects/shop",
    ),
    "the account of a push config": Reference(
        SUBSCRIBER + "ModifyPushConfig",
        ("POST", "subscriptions/worker:modifyPushConfig"),
        {"subscription": WORKER, **SIGNED},
        *ACCOUNTS,
        USER,
        "projects/shop",
    ),
    "a snapshot's subscription": Reference(
        SUBSCRIBER + "CreateSnapshot",
        ("PUT", "snapshots/new"),
        {"name": "projects/shop/snapshots/new", "subscription": "{}"},
        "projects/depot/subscriptions/stock",
        "projects/depot/subscriptions/absent",
        EDITOR,
    ),
    "a snapshot to seek to": Reference(
        SUBSCRIBER + "Seek",
        ("POST", "subscriptions/depots:seek"),
        {"subscription": "projects/shop/subscriptions/depots", "snapshot": "{}"},
        "projects/depot/snapshots/before",
        "projects/depot/snapshots/absent",
        EDITOR,
    ),
    "a schema to check a message against": Reference(
        SCHEMAS + "ValidateMessage",
        ("POST", "schemas:validateMessage"),
        {"parent": "projects/shop", "name": "{}", "message": "e30=", "encoding": "JSON"},
        *DEPOT_SCHEMA,
        EDITOR,
        in_address=("parent",),
    ),
    "a revision to check a message against": Reference(
        SCHEMAS + "ValidateMessage",
        ("POST", "schemas:validateMessage"),
        {"parent": "projects/shop", "name": DEPOT_SCHEMA[0] + "@{}", "message": "e30=", "encoding": "JSON"},
        "REVISION",
        REVISION,
        EDITOR,
        in_address=("parent",),
    ),
}
KINDS = {
    "CreateTopic": pubsub.Topic,
    "UpdateTopic": pubsub.UpdateTopicRequest,
    "CreateSubscription": pubsub.Subscription,
    "UpdateSubscription": pubsub.UpdateSubscriptionRequest,
    "ModifyPushConfig": pubsub.ModifyPushConfigRequest,
    "CreateSnapshot": pubsub.CreateSnapshotRequest,
    "Seek": pubsub.SeekRequest,
    "ValidateMessage": schema.ValidateMessageRequest,
}


@pytest.fixture
def eve(redis_url: str) -> str:
    """Return the token of Eve, who has the project `shop`; `depot` is another tenant's."""
    shop = create_project(project_id="shop")
    create_project(project_id="depot")
    create_topic(name=ORDERS, topic={})
    create_topic(name=DEPOT_TOPIC[0], topic={})
    schemas.create_schema(parent="projects/depot", schema_id="goods", schema=AVRO)
    create_subscription(name="projects/depot/subscriptions/stock", subscription={"topic": DEPOT_TOPIC[0]})
    create_subscription(name=WORKER, subscription={"topic": ORDERS})
    create_subscription(name="projects/shop/subscriptions/depots", subscription={"topic": DEPOT_TOPIC[0]})
    snapshots.create_snapshot(
        name="projects/depot/snapshots/before", request={"subscription": "projects/depot/subscriptions/stock"}
    )
    for project, account_id in (("shop", "pusher"), ("depot", "foreign")):
        service_accounts.create_service_account(project=project, request={"accountId": account_id})
    for role in OWN_ROLES:
        grants.grant_role(shop, role=role, member=EVE)
    return access_tokens.create_access_token(member=EVE).token


def filled(value: Any, reference: str) -> Any:
    """Return the request with the name of the resource filled in."""
    if isinstance(value, dict):
        return {key: filled(inner, reference) for key, inner in value.items()}
    return value.replace("{}", reference) if isinstance(value, str) else value


def existing_of(reference: Reference) -> str:
    if reference.existing != "REVISION":
        return reference.existing
    goods = get_resource(DEPOT_SCHEMA[0])
    return str(schemas.selectors.get_schema_revision(schema=goods).revision_id)  # type: ignore[arg-type]


def over_rest(token: str, reference: Reference, to: str) -> str:
    """Send the request over REST; return the answer's status and text, or OK."""
    body = {field: value for field, value in reference.request.items() if field not in reference.in_address}
    answer = Api().call(*reference.rest, filled(body, to), Authorization=f"Bearer {token}")
    return "OK" if answer.status == 200 else repr(answer.body)


def over_grpc(address: str, token: str, reference: Reference, to: str) -> str:
    service, _, method = reference.method.rpartition(".")
    request = ParseDict(filled(reference.request, to), KINDS[method].pb()())
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{service}/{method}")
        try:
            call(request.SerializeToString(), timeout=30, metadata=(("authorization", f"Bearer {token}"),))
        except grpc.RpcError as error:
            return f"{error.code().name} {error.details()}"
    return "OK"


def rows() -> list[Any]:
    return [list(model.objects.order_by("pk").values()) for model in (Topic, Subscription, Snapshot, Policy)]


def is_denied(answer: str) -> bool:
    return "PERMISSION_DENIED" in answer and "denied on resource" in answer


@pytest.mark.parametrize("word", REFERENCES)
def test_over_rest(eve: str, word: str) -> None:
    reference = REFERENCES[word]
    existing, before = existing_of(reference), rows()

    there, not_there = (over_rest(eve, reference, to) for to in (existing, reference.missing))

    assert is_denied(there)
    assert not_there == there.replace(existing, reference.missing)
    assert rows() == before
    # And a caller who may use the resource learns which one doesn't exist.
    grants.grant_role(get_resource(reference.level), role=reference.role, member=EVE)
    assert not is_denied(over_rest(eve, reference, reference.missing))
    assert over_rest(eve, reference, reference.missing) != "OK"
    assert over_rest(eve, reference, existing) == "OK"


def test_over_grpc(server: GrpcServer, eve: str) -> None:
    before = rows()
    for word, reference in REFERENCES.items():
        existing = existing_of(reference)
        there, not_there = (over_grpc(server.address, eve, reference, to) for to in (existing, reference.missing))
        assert is_denied(there), word
        assert not_there == there.replace(existing, reference.missing), word
    assert rows() == before

    reference = REFERENCES["a subscription's dead-letter topic"]
    grants.grant_role(get_resource(reference.level), role=reference.role, member=EVE)
    wait_for(lambda: over_grpc(server.address, eve, reference, reference.existing) == "OK", what="the grant to count")
    assert over_grpc(server.address, eve, reference, reference.missing).startswith("NOT_FOUND")


#: What the table of methods is tried with in `shop`, what there is of it in `depot`, and what isn't there.
NAMED = [
    ("topics/orders", "topics/stock", "topics/absent"),
    ("subscriptions/audit", "subscriptions/stock", "subscriptions/absent"),
    ("snapshots/none", "snapshots/before", "snapshots/absent"),
    ("schemas/none", "schemas/goods", "schemas/absent"),
    ("roles/none", "roles/packer", "roles/absent"),
    ("pusher@shop.", "foreign@depot.", "absent@depot."),
]


def refusal(method: str, place: int, named: list[tuple[str, str, str]]) -> str:
    """Return why Eve may not call `method` on the names in column `place`, rewritten to those of the first column."""
    requested = names_for(method)
    for source in requested:
        for words in named:
            requested[source] = requested[source].replace(words[0], words[place])
    try:
        authorize(Principal(EVE), method, requested)
    except PermissionDenied as error:
        text = f"{error.message} {error.details}"
        for words in named:
            text = text.replace(words[place], words[0])
        return text
    return ""


@pytest.mark.parametrize("project", ["depot", "nowhere"])
def test_each_method_refuses_existing_and_missing_resources_in_the_same_words(eve: str, project: str) -> None:
    depot = get_resource("projects/depot")
    assert isinstance(depot, Project)
    custom_roles.create_role(depot, {"roleId": "packer", "role": {}})
    named = [("projects/shop", "projects/depot", f"projects/{project}"), *NAMED]

    refusals = {method: [refusal(method, place, named) for place in (1, 2)] for method in METHODS}

    assert sum(map(bool, (there for there, _ in refusals.values()))) > 50
    assert {method for method, (there, not_there) in refusals.items() if there != not_there} == set()


@pytest.mark.parametrize("word", [word for word in REFERENCES if "account" in word])
@pytest.mark.parametrize("role", ["", USER])
def test_an_account_of_another_project_is_refused_as_one_that_does_not_exist(eve: str, word: str, role: str) -> None:
    """With and without the permission to act as all accounts of her own project."""
    reference = REFERENCES[word]
    if role:
        grants.grant_role(get_resource("projects/shop"), role=role, member=EVE)
    foreign, absent = (f"{name}@depot.iam.gserviceaccount.com" for name in ("foreign", "absent"))

    there, not_there = (over_rest(eve, reference, to) for to in (foreign, absent))

    assert there != "OK"
    assert not_there == there.replace(foreign, absent)


# Requests that only REST has


def by_parent(kind: str) -> Callable[[Api, str], Any]:
    def call(api: Api, to: str) -> Any:
        return api.post("/v1/projects", {"projectId": "new-one", "parent": {"type": kind, "id": to}})

    return call


def by_new_parent(kind: str) -> Callable[[Api, str], Any]:
    def call(api: Api, to: str) -> Any:
        return api.put("/v1/projects/shop", {"parent": {"type": kind, "id": to}})

    return call


def by_undelete(api: Api, to: str) -> Any:
    return api.post(f"/v1/projects/-/serviceAccounts/{to}:undelete")


def by_role(api: Api, to: str) -> Any:
    binding = {"role": f"projects/depot/roles/{to}", "members": [EVE]}
    return api.post("/v1/projects/shop:setIamPolicy", {"policy": {"bindings": [binding]}})


def by_member(form: str) -> Callable[[Api, str], Any]:
    def call(api: Api, to: str) -> Any:
        binding = {"role": "roles/viewer", "members": [form.format(to)]}
        return api.post("topics/orders:setIamPolicy", {"policy": {"bindings": [binding]}})

    return call


def by_message(api: Api, to: str) -> Any:
    return api.get(f"/v1/projects/{to}/messages/7")


REST_ONLY: dict[str, tuple[Callable[[Api, str], Any], str, str]] = {
    "the organization of a new project": (by_parent("organization"), "700", "701"),
    "the folder of a new project": (by_parent("folder"), "800", "801"),
    "the organization that a project should be in": (by_new_parent("organization"), "700", "701"),
    "the folder that a project should be in": (by_new_parent("folder"), "800", "801"),
    "a deleted account": (by_undelete, "DELETED", "1" * 21),
    "another project's role": (by_role, "packer", "absent"),
    "a member of another project": (by_member("serviceAccount:{}@depot.iam.gserviceaccount.com"), "foreign", "absent"),
    "a member of some project": (by_member("serviceAccount:absent@{}.iam.gserviceaccount.com"), "depot", "nowhere"),
    "an agent": (by_member("serviceAccount:service-{}@gcp-sa-pubsub.iam.gserviceaccount.com"), "DEPOT", "42"),
    "a group": (by_member("group:{}@example.com"), "crew", "absent"),
    "the project of a message": (by_message, "depot", "nowhere"),
}


@pytest.mark.parametrize("word", REST_ONLY)
def test_over_rest_alone(eve: str, word: str) -> None:
    call, existing, missing = REST_ONLY[word]
    organization = Organization.objects.create(display_name="Depots", number=700)
    Folder.objects.create(display_name="All", number=800, organization=organization)
    shop, depot = (Project.objects.get(project_id=project) for project in ("shop", "depot"))
    role = {"includedPermissions": ["resourcemanager.projects.update"]}
    updater = custom_roles.create_role(shop, {"roleId": "updater", "role": role})
    grants.grant_role(shop, role=updater.name, member=EVE)
    custom_roles.create_role(depot, {"roleId": "packer", "role": role})
    foreign = depot.service_accounts.get()
    if existing == "DELETED":
        service_accounts.delete_service_account(name=foreign.name)
    Group.objects.create(email="crew@example.com")
    existing = existing.replace("DELETED", foreign.unique_id).replace("DEPOT", str(depot.number))
    api = Api()
    headers = {"Authorization": f"Bearer {access_tokens.create_access_token(member=EVE).token}"}
    api.client.defaults["HTTP_AUTHORIZATION"] = headers["Authorization"]

    there, not_there = (call(api, to) for to in (existing, missing))

    assert not_there.status == there.status
    if there.status == 200:
        del there.body["etag"], not_there.body["etag"]
    else:
        assert there.status in (400, 403) or there.error["message"].startswith("Message not found")
        assert "depot" not in repr(there.body).replace("projects/depot/roles", "")
    assert repr(not_there.body) == repr(there.body).replace(existing, missing)


def test_the_owner_of_a_schema_does_not_learn_which_topic_allows_a_revision(eve: str) -> None:
    schemas.create_schema(parent="projects/shop", schema_id="open", schema=AVRO)
    revision = schemas.commit_schema(name="projects/shop/schemas/open", request={"schema": AVRO}).revision_id
    settings = with_schema({"schema": "projects/shop/schemas/open", "lastRevisionId": revision})
    create_topic(name="projects/depot/topics/secret", topic=settings)

    answer = Api().delete(f"schemas/open@{revision}:deleteRevision", Authorization=f"Bearer {eve}")

    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert "secret" not in repr(answer.body)


# The console


@pytest.fixture
def staff(eve: str) -> Client:
    """Return a console client of Eve, who may open every page."""
    return staff_client("eve")


@pytest.mark.parametrize("kind", ["topics", "subscriptions"])
def test_the_form_of_a_replay(staff: Client, kind: str) -> None:
    times = {"since": "2026-11-20 00:00:00", "until": "2026-11-21 00:00:00"}

    there, not_there = (
        str(staff.post("/admin/deliveries/publishjob/replay/", {"name": name, **times}).context["form"].errors)
        for name in (f"projects/depot/{kind}/stock", f"projects/depot/{kind}/absent")
    )

    assert "You need the permission" in there
    assert not_there.replace("absent", "stock") == there


def test_the_form_of_a_project(staff: Client) -> None:
    Organization.objects.create(display_name="Depots", number=700)

    there, not_there = (
        str(errors(staff.post("/admin/subscriptions/project/add/", {"project_id": "new-one", "parent": parent})))
        for parent in ("organizations/700", "organizations/701")
    )

    assert "You need the permission" in there
    assert not_there.replace("701", "700") == there


@pytest.mark.parametrize("form", ["subscription", "topic", "schema"])
def test_a_form_offers_nothing_that_the_address_names(staff: Client, form: str) -> None:
    depot, topic = Project.objects.get(project_id="depot"), Topic.objects.get(topic_id="stock")
    for project, topic_key in ((depot.pk, topic.pk), ("depot", "no number")):
        query = f"project={project}&topic={topic_key}&dead_letter_topic={topic_key}&name={topic_key}"
        page = staff.get(f"/admin/subscriptions/{form}/add/?{query}")
        assert page.status_code == 200
        offered = [str(choice) for field in page.context["adminform"].form for choice in field.subwidgets]
        assert offered
        assert not [choice for choice in offered if "depot" in choice]
