"""The console shows a person what REST answers to the same person, and changes nothing that REST would refuse.

The addresses come from the console's own registry and patterns, so pages that are added later are tested as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group as DjangoGroup
from django.contrib.auth.models import User
from django.core import checks
from django.db.models import Model
from django.test import Client

from deliveries.admin import messages as delivery_pages
from deliveries.models import DeadLetter, Delivery, Message, PublishJob
from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.console.base import ConsoleAdmin, ConsoleSite
from subscriptions.console.navigation import SECTIONS
from subscriptions.iam import grants, tree
from subscriptions.iam.methods import METHODS, authorize_row
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Folder, Organization, Project, ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.credentials import ServiceAccountKey
from subscriptions.models.iam import AuditEntry, Group, GroupMember, Perimeter, Policy, RoleResource
from subscriptions.models.schemas import Schema
from tests.restapi import Api
from tests.tenants import PEOPLE, TENANTS, World, addresses, console_patterns, member_of, model_of, world_of_tenants

pytestmark = pytest.mark.django_db

# The pages register themselves, as for pushhub.urls.
admin.autodiscover()

#: Their pages concern the whole deployment, so only superusers may open them.
OF_THE_DEPLOYMENT = {"SigningKey", "Group", "Segment", "ArchiveFile", "PipelineRun", "User"}
#: Every page that callers other than superusers may open, and the API methods that it stands for.
OF_TENANTS = {
    *("Project", "Topic", "Subscription", "Snapshot", "ServiceAccount", "ServiceAccountKey", "AccessToken", "Policy"),
    *("RoleResource", "Organization", "Folder", "Perimeter", "AuditEntry", "Message", "Delivery", "PublishJob"),
    *("Schema", "DeadLetter"),
}
REGISTRY: dict[Any, ConsoleAdmin] = admin.site._registry


@pytest.fixture
def world(redis_url: str) -> World:
    return world_of_tenants()


def test_every_kind_of_page_is_walked(world: World) -> None:
    walked = {address.split("/")[3] for address in addresses(world, "acme") if address.count("/") > 3}
    assert {model._meta.model_name for model in REGISTRY if model._meta.app_label != "auth"} <= walked
    regular = [pattern for pattern, _ in console_patterns() if "app_label" in pattern or "<url>" in pattern]
    assert len(regular) == 2, "the index of an app, and Django's last resort for addresses without a slash"


# What the pages show


def shown_to(world: World, person: str) -> dict[str, str]:
    """Return the pages that are answered with 200, by their address."""
    pages = {}
    for address in addresses(world, *TENANTS):
        if "logout" in address:
            continue
        response = world.clients[person].get(address)
        assert response.status_code in (200, 302, 403, 404, 405), (address, response.status_code)
        if response.status_code == 200 and "login" not in address:
            pages[address] = response.content.decode()
    return pages


@pytest.mark.any_database
def test_anonymous_callers_see_the_login_page_only(world: World) -> None:
    assert set(shown_to(world, "anonymous")) <= {"/admin/jsi18n/"}
    assert world.clients["anonymous"].get("/admin/subscriptions/").status_code == 302


@pytest.mark.any_database
@pytest.mark.parametrize(("person", "foreign"), [("owner", "zebra"), ("viewer", "zebra"), ("neighbour", "acme")])
def test_nothing_of_another_tenant_is_shown(world: World, person: str, foreign: str) -> None:
    pages = shown_to(world, person)
    assert [address for address, page in pages.items() if foreign in page] == []
    [own] = set(TENANTS) - {foreign}
    assert len([address for address, page in pages.items() if own in page]) > 20


@pytest.mark.any_database
def test_django_permissions_alone_show_nothing(world: World) -> None:
    pages = shown_to(world, "stranger")
    assert [address for address, page in pages.items() for name in TENANTS if name in page] == []


def test_superusers_see_everything(world: World) -> None:
    pages = shown_to(world, "superuser")
    for row in chain.from_iterable(world.rows.values()):
        listing = f"/admin/{row._meta.app_label}/{row._meta.model_name}/"
        assert listing in pages, row
        assert f"{listing}{row.pk}/change/" in pages, row
    assert "secret of acme" in pages[f"/admin/deliveries/message/way/{world.of('acme', Message)[0].pk}/"]


def listed(world: World, person: str, model: type[Model]) -> set[int | str]:
    """Return the primary keys on the console's list of a model; none if the list is refused."""
    address = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    response = world.clients[person].get(address)
    if response.status_code != 200:
        return set()
    return {row.pk for row in response.context["cl"].queryset}


#: The REST request about a row, by the kind of row; the caller sees the row unless the answer is 403.
ASKED: dict[type[Model], Callable[[Any], tuple[str, str, Any]]] = {
    Project: lambda row: ("GET", row.name, None),
    Topic: lambda row: ("GET", row.name, None),
    Subscription: lambda row: ("GET", row.name, None),
    Snapshot: lambda row: ("GET", row.name, None),
    Schema: lambda row: ("GET", row.name, None),
    ServiceAccount: lambda row: ("GET", row.name, None),
    ServiceAccountKey: lambda row: ("GET", row.name, None),
    RoleResource: lambda row: ("GET", row.name, None),
    Delivery: lambda row: ("GET", row.subscription.name, None),
    Message: lambda row: ("POST", f"{row.delivery_set.get().subscription.name}:acknowledge", {"ackIds": ["none"]}),
    PublishJob: lambda row: ("GET", row.spec["topic"], None),
    Policy: lambda row: asked_of_policy(tree.resource_of(row.kind, row.resource_pk)),
}


def asked_of_policy(resource: Any) -> tuple[str, str, Any]:
    http_method = "GET" if tree.kind_of(resource).host == "pubsub" else "POST"
    return http_method, f"{tree.name_of(resource)}:getIamPolicy", None


@pytest.mark.parametrize("person", [person for person in PEOPLE if person != "anonymous"])
def test_a_list_has_the_rows_that_rest_shows_to_the_same_person(world: World, person: str) -> None:
    api = Api()
    api.client = world.clients[person]
    seen = 0
    for model, ask in ASKED.items():
        by_rest = set()
        for row in chain.from_iterable(world.of(tenant, model) for tenant in TENANTS):
            http_method, path, body = ask(row)
            answer = api.call(http_method, f"/v1/{path}", body)
            assert answer.status in (200, 400, 403), (path, answer)
            if answer.status != 403:
                by_rest.add(row.pk)
        assert listed(world, person, model) == by_rest, model
        seen += len(by_rest)
    assert seen > 0 or person == "stranger"


@pytest.mark.parametrize("person", ["owner", "viewer", "neighbour", "stranger"])
def test_the_pages_about_a_row_open_for_callers_whom_rest_answers(world: World, person: str) -> None:
    client = world.clients[person]
    api = Api()
    api.client = client
    for tenant in TENANTS:
        [subscription], [topic] = world.of(tenant, Subscription), world.of(tenant, Topic)
        series = api.get(
            f"/v3/projects/{tenant}/timeSeries?filter=metric.type%3D%22pubsub.googleapis.com/subscription/push_request_count%22"
            "&interval.endTime=2026-11-20T00:00:00Z&interval.startTime=2026-11-19T00:00:00Z"
        )
        pages = {
            f"/admin/deliveries/delivery/state/{subscription.pk}/": api.get(f"/v1/{tree.name_of(subscription)}"),
            f"/admin/subscriptions/topic/{topic.pk}/overview/": api.get(f"/v1/{tree.name_of(topic)}"),
            f"/admin/deliveries/segment/charts/{subscription.pk}/": series,
        }
        for address, answer in pages.items():
            assert (client.get(address).status_code == 200) == (answer.status == 200), (address, answer)


def test_rows_without_a_rest_address_are_shown_by_the_same_table_of_methods(world: World) -> None:
    for person in ("owner", "viewer", "neighbour", "stranger"):
        held = PEOPLE[person]
        project = held[1] if held else ""
        for model in (Organization, Folder):
            assert listed(world, person, model) == set(), "nobody holds a role on any of them"
        audit = {
            row.resource.split("/")[1] for row in AuditEntry.objects.filter(pk__in=listed(world, person, AuditEntry))
        }
        assert audit == ({project} if project else set())
        assert listed(world, person, Perimeter) == set()
    for tenant in TENANTS:
        [organization], [folder], [perimeter] = (world.of(tenant, model) for model in (Organization, Folder, Perimeter))
        member = member_of("stranger")
        grants.grant_role(organization, role="roles/browser", member=member)
        grants.grant_role(folder, role="roles/accesscontextmanager.policyReader", member=member)
        assert organization.pk in listed(world, "stranger", Organization)
        assert folder.pk in listed(world, "stranger", Folder)
        assert perimeter.pk in listed(world, "stranger", Perimeter)
        if tenant == "acme":
            assert len(listed(world, "stranger", Perimeter)) == 1
            both = Perimeter.objects.create(title="of both")
            both.projects.set(Project.objects.all())
            assert both.pk not in listed(world, "stranger", Perimeter), "it would show the neighbour's project"


# What the pages change


def stored(world: World, tenant: str) -> dict[str, Any]:
    """Return every column of every row of a tenant, and the number of rows of each of PushHub's models."""
    rows = {
        f"{type(row).__name__} {row.pk}": type(row)._default_manager.filter(pk=row.pk).values().first()
        for row in world.rows[tenant]
    }
    bound = {(row.kind, row.resource_pk): row.bindings for row in Policy.objects.all()}
    members = sorted(GroupMember.objects.values_list("group", "member"))
    return {
        **rows,
        "bindings": bound,
        "members": members,
        "projects": list(Perimeter.projects.through.objects.values()),
    }


def counted() -> dict[str, int]:
    """Count the rows of every model except the audit log, which records refused calls too."""
    models = [*apps.get_app_config("subscriptions").get_models(), *apps.get_app_config("deliveries").get_models(), User]
    return {model.__name__: model._default_manager.count() for model in models if model is not AuditEntry}


def changes_for(world: World, tenant: str, address: str) -> Iterator[dict[str, Any]]:
    """Yield the forms that a person might send to an address to change something."""
    model = model_of(address)
    if address.endswith("/delete/"):
        yield {"post": "yes"}
    elif address.endswith(("/change/", "/add/")):
        yield form_of(world, address, tenant)
    elif address.startswith("/admin/subscriptions/policy/of/projects"):
        yield {"grant": "1", "member": "user:mallory@example.com", "role": "roles/owner"}
        yield {"revoke": f"roles/pubsub.viewer user:guest@{tenant}.test"}
    elif "/publish/" in address:
        yield {"text": "hello", "attributes": "{}"}
    elif "/deadletter/" in address:
        letters = [row.pk for row in world.of(tenant, DeadLetter)]
        for verb in ("redrive", "discard", "redrive-all", "discard-all"):
            yield {"do": verb, "letter": letters, "rate": "10", "confirmed": "yes"}
    elif "replay" in address:
        yield {"name": f"projects/{tenant}/topics/{tenant}-topic", "since": "2026-11-20", "until": "2026-11-21"}
    elif model in REGISTRY and address.count("/") == 4:
        chosen = [row.pk for row in world.of(tenant, model)]
        request = type("Request", (), {"user": User(is_superuser=True, is_staff=True, is_active=True), "GET": {}})()
        for action in REGISTRY[model].get_actions(request):
            yield {"action": action, "_selected_action": chosen, "post": "yes"}
    else:
        yield {"any": "thing"}


#: Fields that take no text but certain ones.
CHECKED = ("message_retention", "encoding", "first_revision", "last_revision", "role", "username", "password")


def form_of(world: World, address: str, tenant: str) -> dict[str, Any]:
    """Return a form as the superuser sees it, about a tenant's rows, with another text in each text field."""
    page = world.clients["superuser"].get(address)
    if page.context is None or "adminform" not in page.context:
        return {}
    form = page.context["adminform"].form
    sent = {}
    for name in form.fields:
        choices = getattr(form.fields[name], "queryset", None)
        value = form[name].value()
        if choices is not None:
            mine = [row.pk for row in choices if tenant in str(row)]
            value = mine[0] if mine and name != "folder" else None
        elif isinstance(value, str) and name not in CHECKED:
            value = '{"changed": "yes"}' if value.startswith("{") else f"{value}x"
        if value not in (None, False):
            sent[name] = value
    for number in range(1):
        sent |= {"members-TOTAL_FORMS": "1", "members-INITIAL_FORMS": "0", f"members-{number}-member": "user:m@x.test"}
    return sent


def every_change(world: World) -> list[tuple[str, str, dict[str, Any]]]:
    """Return a tenant, an address and a form about the tenant's rows, for each form that a person might send."""
    forms: dict[tuple[str, str], tuple[str, str, dict[str, Any]]] = {}
    for tenant in TENANTS:
        for address in addresses(world, tenant):
            if "logout" not in address and "password" not in address:
                for data in changes_for(world, tenant, address):
                    forms.setdefault((address, str(data)), (tenant, address, data))
    return list(forms.values())


@pytest.mark.any_database
def test_nothing_is_changed_without_the_permission(world: World) -> None:
    forms = every_change(world)
    before, number = {tenant: stored(world, tenant) for tenant in TENANTS}, counted()
    about = {"stranger": TENANTS, "viewer": TENANTS, "anonymous": ("acme",), "neighbour": ("acme",)}
    for person, tenants in about.items():
        sent = [(address, data) for tenant, address, data in forms if tenant in tenants]
        for address, data in sent:
            response = world.clients[person].post(address, data)
            assert response.status_code in (200, 302, 403, 404, 405), (person, address, response.status_code)
        assert len(sent) > 100
        assert counted() == number, person
        assert {tenant: stored(world, tenant) for tenant in TENANTS} == before, person


def test_the_owner_can_change_the_owners_rows(world: World) -> None:
    """The test above would notice nothing if its forms were wrong, so this one sees the owner's forms accepted."""
    owner = world.clients["owner"]
    [topic], [account] = world.of("acme", Topic), world.of("acme", ServiceAccount)
    for row in (topic, account):
        address = f"/admin/subscriptions/{row._meta.model_name}/{row.pk}/change/"
        assert owner.post(address, form_of(world, address, "acme")).status_code == 302, address
    topic.refresh_from_db()
    assert topic.labels != {"owner": "acme"}  # type: ignore[attr-defined]
    owner.post(
        "/admin/subscriptions/topic/", {"action": "delete_selected", "_selected_action": [topic.pk], "post": "y"}
    )
    assert not Topic.objects.filter(pk=topic.pk).exists()


def test_staff_do_not_join_groups_or_become_superusers(world: World) -> None:
    """A group's member holds every role of the group, and a superuser every permission."""
    for person in ("owner", "stranger"):
        client = world.clients[person]
        [group] = world.of("acme", Group)
        own = User.objects.get(username=person)
        for address in (
            f"/admin/subscriptions/group/{group.pk}/change/",
            f"/admin/auth/user/{own.pk}/change/",
            f"/admin/auth/user/{own.pk}/password/",
            "/admin/auth/user/add/",
            "/admin/auth/group/add/",
        ):
            assert client.get(address).status_code in (302, 403), address
            client.post(address, {"username": person, "is_superuser": "on", "is_staff": "on", "email": "root@x.test"})
        own.refresh_from_db()
        assert (own.is_superuser, own.email) == (False, f"{person}@example.com")


# Lookups in the query string


def test_a_lookup_that_the_page_does_not_offer_as_a_filter_is_refused(world: World) -> None:
    """Otherwise `?private_key__regex=^a` and its like would guess a hidden column letter by letter."""
    root = world.clients["superuser"]
    request = request_of(root)
    for model, page in REGISTRY.items():
        listing = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        columns = [column.name for column in model._meta.get_fields()]
        assert root.get(listing, {f"{columns[-1]}__regex": "1"}).status_code == 400, listing
        for column in [*columns, "project__service_accounts__keys__certificate"]:
            for lookup in ("__regex", "__startswith", "__gt", "__in", "__contains"):
                assert not page.lookup_allowed(f"{column}{lookup}", "1", request), (listing, column, lookup)
    assert root.get("/admin/subscriptions/signingkey/", {"private_key__regex": "^p"}).status_code == 400


def test_the_filters_of_a_page_work(world: World) -> None:
    root = world.clients["superuser"]
    for address in (
        f"subscriptions/subscription/?project__id__exact={Project.objects.get(project_id='acme').pk}&detached__exact=0",
        "subscriptions/auditentry/?outcome__exact=done&surface=command&at__year=2026",
        "deliveries/segment/?state__exact=counted&job=rollup",
        "deliveries/delivery/?last_result=acme",
        "auth/user/?is_staff__exact=1",
    ):
        assert root.get(f"/admin/{address}").status_code == 200, address


def request_of(client: Client) -> Any:
    return client.get("/admin/").wsgi_request


# The mechanism behind the pages


def test_every_page_is_a_page_of_the_console() -> None:
    """A newly registered model has to be added here, so that its access is considered."""
    assert isinstance(admin.site, ConsoleSite) or isinstance(admin.site._wrapped, ConsoleSite)  # type: ignore[attr-defined]
    for model, page in REGISTRY.items():
        assert isinstance(page, ConsoleAdmin), model
        assert set(page.methods) <= {
            "view",
            "add",
            "change",
            "delete",
            "disable",
            "enable",
            "delete_keys",
            "grant_agent",
        }
        assert set(page.methods.values()) - {""} <= set(METHODS)
    assert {model.__name__ for model, page in REGISTRY.items() if page.methods} == OF_TENANTS
    ours = {model.__name__ for model, page in REGISTRY.items() if not page.methods and model is not DjangoGroup}
    assert ours == OF_THE_DEPLOYMENT


def test_django_finds_no_fault_in_the_definitions_of_the_pages() -> None:
    """`manage.py check` sees the pages only after they have registered themselves, which most commands leave out."""
    assert checks.run_checks(tags=[checks.Tags.admin]) == []


def test_a_page_registered_without_an_access_rule_is_for_superusers(world: World) -> None:
    site = ConsoleSite()
    site.register(Topic)
    request = request_of(world.clients["owner"])
    page = site._registry[Topic]
    assert not page.has_view_permission(request)
    assert not page.has_add_permission(request)
    assert not page.get_queryset(request).exists()
    assert page.get_queryset(request_of(world.clients["superuser"])).count() == 2


@pytest.mark.parametrize("role", ["roles/owner", "roles/iam.securityReviewer"])
def test_a_list_decides_as_a_single_row_does(world: World, role: str) -> None:
    """The rows that one query chooses are the rows that the table of methods allows one by one."""
    caller = Principal(member_of("stranger"))
    places = [row for row in world.rows["acme"] if type(row).__name__ in tree.KINDS]
    grants.grant_role(Topic.objects.get(topic_id="zebra-topic"), role="roles/pubsub.subscriber", member=caller.member)
    for place in places:
        try:
            grants.grant_role(place, role=role, member=caller.member)
        except Exception as error:
            assert "not supported" in str(error), error
            continue
        for page in REGISTRY.values():
            if page.model.__name__ not in tree.KINDS:
                continue
            for method in page.methods.values():
                if method.rpartition(".")[2].startswith("Create"):
                    continue
                rows = page.model._default_manager.all()
                assert set(rows_callable(caller, method, rows)) == {row for row in rows if may(caller, method, row)}, (
                    place,
                    method,
                )
        grants.revoke_role(place, role=role, member=caller.member)


@pytest.mark.parametrize("name", ["owner", "neighbour", "viewer", "stranger"])
def test_many_deliveries_are_chosen_by_the_same_rule_as_few(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, page = request_of(world.clients[name]), REGISTRY[Delivery]
    few = set(page.get_queryset(request))
    monkeypatch.setattr(delivery_pages, "MANY_DELIVERIES", 0)
    assert set(page.get_queryset(request)) == few
    assert few < set(Delivery.objects.all())


def may(caller: Principal, method: str, row: Model) -> bool:
    try:
        authorize_row(caller, method, row)
    except PermissionDenied:
        return False
    return True


# The sidebar and the project switcher


def test_every_page_is_in_the_sidebar() -> None:
    listed = {entry.target for section in SECTIONS for entry in section.entries if entry.is_model}
    assert listed == {model._meta.label_lower for model in REGISTRY}


@pytest.mark.any_database
def test_only_the_index_builds_djangos_list_of_all_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list asks for each model's permissions, which was an eighth of the time of every page."""
    built: list[Any] = []
    build = ConsoleSite._build_app_dict  # type: ignore[attr-defined]
    monkeypatch.setattr(ConsoleSite, "_build_app_dict", lambda *args: built.append(args) or build(*args))
    for address, count in (("/admin/subscriptions/topic/", 0), ("/admin/subscriptions/", 1)):
        assert world.clients["superuser"].get(address).status_code == 200
        assert len(built) == count, address


def test_a_project_of_another_tenant_is_neither_offered_nor_accepted(world: World) -> None:
    client = world.clients["owner"]
    assert client.get("/admin/").context["project_switcher"]["offered"] == ["acme"]
    assert client.post("/admin/choose-project/", {"project": "zebra"}).status_code == 404
    assert client.get("/admin/").context["project_switcher"]["chosen"] == ""


def test_a_chosen_project_limits_the_lists_to_it(world: World) -> None:
    root = world.clients["superuser"]
    answer = root.post("/admin/choose-project/", {"project": "acme", "next": "/admin/subscriptions/topic/"})
    assert answer.headers["Location"] == "/admin/subscriptions/topic/"
    for model in (Topic, Subscription, Message, Delivery, Schema, Snapshot, ServiceAccountKey):
        assert listed(world, "superuser", model) == {row.pk for row in world.of("acme", model)}, model
    root.post("/admin/choose-project/", {"project": ""})
    assert len(listed(world, "superuser", Topic)) == 2


def test_the_project_switcher_only_redirects_into_the_console(world: World) -> None:
    for address in ("https://evil.test/admin/", "//evil.test/admin/", "/v1/projects", "javascript:alert(1)", "//["):
        answer = world.clients["owner"].post("/admin/choose-project/", {"project": "acme", "next": address})
        assert answer.headers["Location"] == "/admin/", address
