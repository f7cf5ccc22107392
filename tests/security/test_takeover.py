"""Nobody becomes another project, its service agent or its service accounts through a name that looks like theirs."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from django.core.management import CommandError, call_command
from google.api_core import exceptions
from google.cloud import pubsub_v1
from pytest_django.live_server_helper import LiveServer

from pushhub.common import names
from pushhub.common.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unauthenticated,
)
from pushhub.common.principals import Principal
from subscriptions import checks, selectors
from subscriptions.cli.main import main
from subscriptions.iam import access, grants
from subscriptions.iam.methods import METHODS, authorize
from subscriptions.identity import access_tokens, account_keys, agents, exchange, pairs, tokens
from subscriptions.identity.callers import caller_from_authorization
from subscriptions.models import Organization, Project, ServiceAccount
from subscriptions.models.credentials import AccessToken, ServiceAccountKey
from subscriptions.models.iam import Group, GroupMember, Policy
from subscriptions.services import service_accounts
from subscriptions.services.projects import create_project, ensure_project
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.integration.iam.test_access_table import EXPECTED, names_for
from tests.integration.identity.keyfiles import GRANT, assertion_claims, bearer_claims, signed
from tests.restapi import Api, root_client

pytestmark = pytest.mark.any_database

THIEF = "user:thief@example.com"
PUSHER = "pusher@shop.iam.gserviceaccount.com"
CREATOR = "roles/iam.serviceAccountTokenCreator"

#: Ids that no new project may have. What is left of Google's own is in test_names.py.
REFUSED_IDS = ["gcp-sa-pubsub", "gcp-sa-other", "compute-system", "web-google-1", "SHOP", "Shop-Two", "458983010884"]


@pytest.fixture
def shop(db: None) -> Project:
    """Create the victim: a project with an account, for which its service agent may sign."""
    project = create_project(project_id="shop")
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})
    return project


@pytest.fixture
def thief(settings: Any, shop: Project) -> Api:
    """Return a caller who may create projects in an organization of their own, and nothing else."""
    organization = Organization.objects.create(display_name="thieves.example", number=7)
    grants.grant_role(organization, role="roles/resourcemanager.projectCreator", member=THIEF)
    caller = Api()
    caller.sign_in("thief@example.com")
    return caller


def project_body(project_id: str) -> dict[str, Any]:
    return {"projectId": project_id, "parent": {"type": "organization", "id": "7"}}


def old_account(project_id: str, email: str) -> tuple[ServiceAccount, dict[str, str]]:
    """Create an account whose name would be refused today, with a key file that its thief holds."""
    project = Project.objects.filter(project_id=project_id).first() or Project.objects.create(project_id=project_id)
    account = ServiceAccount.objects.create(project=project, email="made-for-a-key@shop.iam.gserviceaccount.com")
    key = account_keys.create_service_account_key(name=account.name, request={})
    ServiceAccount.objects.filter(pk=account.pk).update(email=email)
    account.refresh_from_db()
    return account, {
        "private_key_id": key.row.key_id,
        "private_key": key.key_file.decode().split('"private_key": "')[1].split('"')[0].replace("\\n", "\n"),
    }


def callable_by(caller: Principal) -> set[str]:
    """Return the methods that the caller may call on the resources of the project `shop`."""
    methods = set()
    for method in METHODS:
        try:
            authorize(caller, method, names_for(method))
        except PermissionDenied:
            continue
        methods.add(method)
    return methods


# A project's name, on every surface


def by_rest(project_id: str) -> None:
    api = Api()
    api.sign_in("root@example.com", is_superuser=True)
    assert api.post("/v1/projects", {"projectId": project_id}).error["status"] == "INVALID_ARGUMENT"


def by_first_use_over_rest(project_id: str) -> None:
    for method, path in (("PUT", "topics/orders"), ("GET", "topics"), ("GET", "serviceAccounts"), ("GET", "snapshots")):
        assert Api().call(method, f"/v1/projects/{project_id}/{path}").error["status"] == "INVALID_ARGUMENT", path


def by_command(project_id: str) -> None:
    with pytest.raises(CommandError):
        call_command("project_create", project_id)


def by_service(project_id: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        create_project(project_id=project_id)
    assert caught.value.field == "projectId"


def by_first_use_in_a_service(project_id: str) -> None:
    with pytest.raises(InvalidArgument):
        service_accounts.create_service_account(project=project_id, request={"accountId": "service-1"})


def by_console(project_id: str) -> None:
    client = root_client()
    page = client.post("/admin/subscriptions/project/add/", {"project_id": project_id, "parent": ""})
    assert "project_id" in page.context["adminform"].form.errors


ENTRANCES: list[Callable[[str], None]] = [
    by_rest,
    by_first_use_over_rest,
    by_command,
    by_service,
    by_first_use_in_a_service,
    by_console,
]


@pytest.mark.parametrize("entrance", ENTRANCES, ids=lambda entrance: entrance.__name__)
@pytest.mark.parametrize("project_id", REFUSED_IDS)
def test_no_surface_creates_a_project_that_could_be_mistaken_for_another(
    db: None, entrance: Callable[[str], None], project_id: str
) -> None:
    entrance(project_id)

    assert not Project.objects.exists()


@pytest.mark.parametrize("project_id", REFUSED_IDS)
def test_its_first_use_over_grpc_creates_no_such_project(server: GrpcServer, project_id: str) -> None:
    with pubsub_v1.PublisherClient() as publisher, pytest.raises(exceptions.InvalidArgument):
        publisher.create_topic(name=f"projects/{project_id}/topics/orders")
    with pubsub_v1.PublisherClient() as publisher, pytest.raises(exceptions.InvalidArgument):
        list(publisher.list_topics(project=f"projects/{project_id}"))

    assert not Project.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("project_id", REFUSED_IDS)
def test_the_command_line_creates_no_such_project(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], project_id: str
) -> None:
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)

    assert main(["projects", "create", project_id]) == 1
    assert "INVALID_ARGUMENT" in capsys.readouterr().err
    assert not Project.objects.exists()


def test_an_id_that_differs_from_an_existing_one_only_in_case_is_refused(db: None) -> None:
    Project.objects.create(project_id="SHOP")

    with pytest.raises(AlreadyExists):
        create_project(project_id="shop")
    with pytest.raises(AlreadyExists):
        ensure_project(project="shop")

    assert Project.objects.count() == 1


def test_the_number_of_a_project_names_it_even_if_an_older_project_has_that_id(db: None) -> None:
    """Otherwise the owner of the id would read messages that are sent to the number."""
    Project.objects.create(project_id="4711")
    shop = Project.objects.create(project_id="shop", number=4711)
    api = Api()
    topic = api.create("/v1/projects/4711/topics/orders")

    assert topic["name"] == "projects/shop/topics/orders"
    assert selectors.get_project(project="4711") == shop
    assert selectors.get_topic(name="projects/4711/topics/orders").project == shop
    assert api.get("/v1/projects/4711/topics").body == {"topics": [topic]}


# The takeover as it was reported


def test_a_caller_who_may_create_projects_gets_no_key_of_another_projects_service_agent(
    thief: Api, shop: Project
) -> None:
    refused = thief.post("/v1/projects", project_body("gcp-sa-pubsub"))

    assert (refused.status, refused.fields) == (400, ["projectId"])
    account = {"accountId": f"service-{shop.number}"}
    assert thief.post("/v1/projects/gcp-sa-pubsub/serviceAccounts", account).status == 403
    assert not ServiceAccount.objects.exclude(email=PUSHER).exists()
    assert not ServiceAccountKey.objects.exists()


@pytest.mark.parametrize("case", ["gcp-sa-pubsub", "GCP-SA-PUBSUB", "gcp-sa-other"])
def test_an_older_project_of_that_name_gets_no_account_and_an_older_account_no_key(shop: Project, case: str) -> None:
    project = Project.objects.create(project_id=case)

    with pytest.raises(FailedPrecondition):
        service_accounts.create_service_account(project=case, request={"accountId": f"service-{shop.number}"})
    account = ServiceAccount.objects.create(
        project=project, email=f"service-{shop.number}@{case}.iam.gserviceaccount.com"
    )
    private_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = pairs.certificate_of(private_key, account.unique_id, until=account_keys.NEVER)
    with pytest.raises(FailedPrecondition, match="no keys"):
        account_keys.create_service_account_key(name=account.name, request={})
    with pytest.raises(FailedPrecondition, match="no keys"):
        upload = {"publicKeyData": base64.b64encode(certificate.encode()).decode()}
        account_keys.upload_service_account_key(name=account.name, request=upload)
    for address in (account.email, shop.service_agent):
        with pytest.raises(NotFound):
            access_tokens.create_access_token(member=f"serviceAccount:{address}")

    assert not ServiceAccountKey.objects.exists()
    assert not AccessToken.objects.exists()


# An older account that looks like the service agent of shop


@pytest.fixture(params=["gcp-sa-pubsub", "GCP-SA-PUBSUB"])
def look_alike(request: pytest.FixtureRequest, shop: Project) -> tuple[ServiceAccount, dict[str, str]]:
    address = shop.service_agent if request.param.islower() else shop.service_agent.replace("gcp-sa", "GCP-SA")
    return old_account(request.param, address)


def test_the_jwt_and_the_tokens_of_the_old_account_authenticate_nobody(
    look_alike: tuple[ServiceAccount, dict[str, str]],
) -> None:
    account, key = look_alike
    token = access_tokens.create_account_token(account=account).token
    orphan = access_tokens.create_account_token(account=account)
    AccessToken.objects.filter(pk=orphan.row.pk).update(account=None)
    jwt = signed(key, bearer_claims(iss=account.email, sub=account.email))
    by_number = signed(key, bearer_claims(iss=account.unique_id, sub=account.unique_id))
    assertion = signed(key, assertion_claims(iss=account.email))

    for credential in (token, orphan.token, jwt, by_number):
        with pytest.raises(Unauthenticated):
            caller_from_authorization(f"Bearer {credential}")
    with pytest.raises(exchange.GrantRefused, match="account not found"):
        exchange.grant_token({"grant_type": GRANT, "assertion": assertion})


def test_no_push_is_signed_in_the_name_of_the_old_account(look_alike: tuple[ServiceAccount, dict[str, str]]) -> None:
    """A receiver would mistake the address in the token for the service agent's."""
    account, _ = look_alike

    with pytest.raises(tokens.TokenDenied, match="account_disabled"):
        tokens.mint_id_token(email=account.email, audience="https://shop.example")
    assert agents.accounts_signable([account.email]) == {}
    assert account_keys.certificates_of(account.email) == {}


def test_even_as_a_known_caller_the_old_account_may_do_nothing_that_the_agent_may(
    look_alike: tuple[ServiceAccount, dict[str, str]], shop: Project
) -> None:
    account, _ = look_alike
    agent = agents.service_agent(shop)
    imposters = [
        Principal(f"serviceAccount:{account.email}", unique_id=account.unique_id),
        Principal(f"serviceAccount:{shop.service_agent}", unique_id=str(shop.number)),
        Principal(f"serviceAccount:{shop.service_agent}"),
        Principal(f"user:{shop.service_agent}"),
    ]
    grants.grant_role(shop, role="roles/owner", member=agent.member)

    assert callable_by(agent) > EXPECTED["roles/owner"]
    for imposter in imposters:
        assert callable_by(imposter) == EXPECTED["*"], imposter


# An older project whose id differs only in case


@pytest.fixture
def twin(shop: Project) -> tuple[ServiceAccount, dict[str, str]]:
    """Create an account of `SHOP`, while shop's own account is an owner of shop."""
    grants.grant_role(shop, role="roles/owner", member=f"serviceAccount:{PUSHER}")
    return old_account("SHOP", "pusher@SHOP.iam.gserviceaccount.com")


def test_an_account_of_the_twin_is_not_the_account_of_shop(twin: tuple[ServiceAccount, dict[str, str]]) -> None:
    account, key = twin
    callers = [
        caller_from_authorization(f"Bearer {signed(key, bearer_claims(iss=account.email, sub=account.email))}"),
        caller_from_authorization(f"Bearer {access_tokens.create_account_token(account=account).token}"),
    ]

    assert callable_by(Principal(f"serviceAccount:{PUSHER}")) > EXPECTED["roles/viewer"]
    for caller in callers:
        assert callable_by(caller) == EXPECTED["*"]


@pytest.mark.django_db(transaction=True)
def test_the_twins_account_is_not_the_account_of_shop_over_any_surface(server: GrpcServer, settings: Any) -> None:
    create_topic(name="projects/shop/topics/orders", topic={})
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})
    shop = Project.objects.get()
    grants.grant_role(shop, role="roles/owner", member=f"serviceAccount:{PUSHER}")
    twin, _ = old_account("SHOP", "pusher@SHOP.iam.gserviceaccount.com")
    token = access_tokens.create_account_token(account=twin).token
    own = access_tokens.create_access_token(member=f"serviceAccount:{PUSHER}").token

    def by_grpc(token: str) -> str:
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
            request = pubsub_v1.types.GetTopicRequest.pb()(topic="projects/shop/topics/orders").SerializeToString()
            try:
                call(request, timeout=30, metadata=(("authorization", f"Bearer {token}"),))
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    def by_rest(token: str) -> int:
        return Api().get("topics/orders", Authorization=f"Bearer {token}").status

    assert (by_grpc(own), by_rest(own)) == ("OK", 200)
    assert (by_grpc(token), by_rest(token)) == ("PERMISSION_DENIED", 403)


# Accounts that get an address after each other


def test_a_new_account_inherits_no_grants_of_its_address(shop: Project) -> None:
    """Groups take members that don't exist, and a policy may be written while an account is deleted."""
    member = "serviceAccount:newcomer@shop.iam.gserviceaccount.com"
    GroupMember.objects.create(group=Group.objects.create(email="crew@example.com"), member=member)
    policy = Policy.objects.get(kind="project", resource_pk=shop.pk)
    policy.bindings = [*policy.bindings, {"role": "roles/owner", "members": [THIEF, member]}]
    policy.save()
    grants.grant_role(shop, role="roles/editor", member="group:crew@example.com")

    account = service_accounts.create_service_account(project="shop", request={"accountId": "newcomer"})

    assert callable_by(Principal(member, unique_id=account.unique_id)) == EXPECTED["*"]
    policy.refresh_from_db()
    assert {"role": "roles/owner", "members": [THIEF]} in policy.bindings


def test_an_account_of_a_new_project_inherits_no_grants_from_before_the_project(shop: Project) -> None:
    member = "serviceAccount:deployer@future.iam.gserviceaccount.com"
    grants.grant_role(shop, role="roles/owner", member=member)

    create_project(project_id="future")
    account = service_accounts.create_service_account(project="future", request={"accountId": "deployer"})

    assert callable_by(Principal(member, unique_id=account.unique_id)) == EXPECTED["*"]
    assert not any(member in binding["members"] for policy in Policy.objects.all() for binding in policy.bindings)


def test_a_cached_decision_does_not_apply_to_the_next_account_of_the_address(shop: Project) -> None:
    grants.grant_role(shop, role="roles/viewer", member=f"serviceAccount:{PUSHER}")
    old = Principal(f"serviceAccount:{PUSHER}", unique_id="1")
    new = Principal(f"serviceAccount:{PUSHER}", unique_id="2")
    assert access.allowed(old, "resourcemanager.projects.get", shop)
    assert "google.cloudresourcemanager.v1.GetProject" in callable_by(old)
    assert access.resources_granting(old, "resourcemanager.projects.get") == {("project", shop.pk)}
    Policy.objects.update(bindings=[])  # as in another process: no cache here is cleared

    assert access.allowed(old, "resourcemanager.projects.get", shop), "the decision is cached for a second"
    assert not access.allowed(new, "resourcemanager.projects.get", shop)
    assert access.resources_granting(new, "resourcemanager.projects.get") == set()
    assert callable_by(new) == EXPECTED["*"]


@pytest.mark.parametrize("address", ["service-{}0", "service-0{}", "service-{}x", "{}", "x-{}", "service-"])
def test_a_policy_binds_no_agent_of_a_project_that_does_not_exist(shop: Project, address: str) -> None:
    member = f"serviceAccount:{address.format(shop.number)}@gcp-sa-pubsub.iam.gserviceaccount.com"

    with pytest.raises(InvalidArgument, match="does not exist"):
        grants.grant_role(shop, role=CREATOR, member=member)


# Accounts and projects that exist already


def test_migrate_reports_what_clashes_and_changes_nothing(
    look_alike: tuple[ServiceAccount, dict[str, str]], shop: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    for project_id in ("SHOP", str(shop.number), "shop.example.com", "example.com:shop", "compute-system"):
        Project.objects.create(project_id=project_id)
    before = list(Project.objects.values()), list(ServiceAccount.objects.values())

    call_command("migrate", verbosity=0, skip_checks=False)

    said = capsys.readouterr().err
    for text in (
        f"{look_alike[0].project} is reserved",
        "compute-system is reserved",
        f"{shop.number} is the number of the project shop",
        "SHOP",
        "example.com:shop",
        f"{look_alike[0].email} has the address of a service agent",
    ):
        assert text in said, text
    assert (list(Project.objects.values()), list(ServiceAccount.objects.values())) == before


def test_nothing_is_reported_if_no_names_clash(shop: Project) -> None:
    Project.objects.create(project_id="depot")

    assert checks.check_names(None, ["default"]) == []
    assert names.service_agent_number(shop.service_agent) == shop.number
