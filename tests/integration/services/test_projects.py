"""Projects through Resource Manager's own client, `build("cloudresourcemanager", "v1")`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import google_auth_httplib2
import httplib2
import pytest
from google.oauth2.credentials import Credentials
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from pytest_django.live_server_helper import LiveServer

from pushhub.common.clock import utcnow
from pushhub.common.principals import Principal
from subscriptions.iam import grants
from subscriptions.identity import access_tokens
from subscriptions.models import Folder, Organization, Project
from subscriptions.services import projects
from subscriptions.services.projects import create_project
from tests.restapi import Api

ADA = "user:ada@example.com"


@pytest.fixture
def organization(transactional_db: None) -> Organization:
    organization = Organization.objects.create(display_name="example.com")
    grants.grant_role(organization, role="roles/resourcemanager.projectCreator", member=ADA)
    return organization


@pytest.fixture
def managed(organization: Organization, live_server: LiveServer, settings: Any) -> Iterator[Any]:
    """Return Resource Manager's client for Ada, who may create projects in the organization."""
    settings.ANONYMOUS = ""
    credentials = Credentials(access_tokens.create_access_token(member=ADA).token)
    http = google_auth_httplib2.AuthorizedHttp(credentials, http=httplib2.Http())
    options = {"api_endpoint": live_server.url}
    with build("cloudresourcemanager", "v1", static_discovery=True, client_options=options, http=http) as client:
        yield client.projects()


def refusal(request: Any) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        request.execute()
    return caught.value.status_code, caught.value.reason


def parent_of(organization: Organization) -> dict[str, str]:
    return {"type": "organization", "id": str(organization.number)}


def test_the_life_of_a_project(managed: Any, organization: Organization) -> None:
    body = {"projectId": "web-shop", "name": "Shop", "labels": {"team": "web"}, "parent": parent_of(organization)}

    operation = managed.create(body=body).execute()
    project = Project.objects.get()
    assert (operation["done"], operation["name"]) == (True, f"operations/cp.{project.number}")
    created = operation["response"]
    assert created.pop("@type") == "type.googleapis.com/google.cloudresourcemanager.v1.Project"
    assert created == {
        **body,
        "projectNumber": str(project.number),
        "lifecycleState": "ACTIVE",
        "createTime": created["createTime"],
    }
    assert managed.get(projectId="web-shop").execute() == created
    assert managed.get(projectId=str(project.number)).execute() == created
    assert managed.list().execute() == {"projects": [created]}
    assert managed.getAncestry(projectId="web-shop", body={}).execute() == {
        "ancestor": [{"resourceId": {"type": "project", "id": "web-shop"}}, {"resourceId": parent_of(organization)}]
    }

    changed = managed.update(projectId="web-shop", body={**created, "name": "Store", "labels": {}}).execute()
    assert (changed["name"], "labels" in changed) == ("Store", False)
    assert managed.delete(projectId="web-shop").execute() == {}
    assert managed.get(projectId="web-shop").execute()["lifecycleState"] == "DELETE_REQUESTED"
    assert managed.undelete(projectId="web-shop", body={}).execute() == {}
    assert managed.get(projectId="web-shop").execute() == changed


def test_the_creator_of_a_project_owns_it(managed: Any, organization: Organization) -> None:
    managed.create(body={"projectId": "web-shop", "parent": parent_of(organization)}).execute()

    policy = managed.getIamPolicy(resource="web-shop", body={}).execute()

    assert {"role": "roles/owner", "members": [ADA]} in policy["bindings"]


def test_only_the_operator_creates_projects_without_a_parent(managed: Any) -> None:
    status, reason = refusal(managed.create(body={"projectId": "web-shop"}))

    assert status == 403
    assert "resourcemanager.projects.create" in reason
    assert not Project.objects.exists()


def test_each_caller_sees_the_projects_that_it_may_get(managed: Any, organization: Organization) -> None:
    create_project(project_id="secret", parent=organization)
    open_one = create_project(project_id="open-one")
    grants.grant_role(open_one, role="roles/viewer", member=ADA)

    assert [project["projectId"] for project in managed.list().execute()["projects"]] == ["open-one"]
    assert refusal(managed.get(projectId="secret"))[0] == 403
    assert refusal(managed.get(projectId="is-not-there"))[0] == 403


def test_a_list_asks_the_database_as_often_for_a_hundred_projects_as_for_ten(
    db: None, django_assert_max_num_queries: Any
) -> None:
    """Anybody with a token may ask for it, and each project had a query of its own."""
    Project.objects.bulk_create(Project(project_id=f"shop-{number}", created_at=utcnow()) for number in range(100))
    with django_assert_max_num_queries(10):
        assert not projects.projects_visible(Principal("user:eve@example.com"))


def test_projects_are_listed_in_pages(managed: Any) -> None:
    for project_id in ("cc-cccc", "aa-aaaa", "bb-bbbb"):
        grants.grant_role(create_project(project_id=project_id), role="roles/browser", member=ADA)

    first = managed.list(pageSize=2)
    page = first.execute()
    second = managed.list_next(first, page)

    assert [project["projectId"] for project in page["projects"]] == ["aa-aaaa", "bb-bbbb"]
    assert [project["projectId"] for project in second.execute()["projects"]] == ["cc-cccc"]


@pytest.mark.any_database
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"projectId": "short"},
        {"projectId": "123456"},
        {"projectId": "Capitals"},
        {"projectId": "ends-with-"},
        {"projectId": "x" * 31},
        {"projectId": "web-shop", "parent": {"type": "project", "id": "1"}},
        {"projectId": "web-shop", "parent": {"type": "organization", "id": "x"}},
        {"projectId": "web-shop", "labels": {"a": 1}},
        {"projectId": "web-shop", "colour": "red"},
    ],
)
def test_a_bad_request_is_refused_and_creates_nothing(api: Api, body: dict[str, Any]) -> None:
    assert api.post("/v1/projects", body).status == 400
    assert not Project.objects.exists()


def test_an_existing_id_or_a_missing_parent_creates_no_project(api: Api) -> None:
    assert api.post("/v1/projects", {"projectId": "web-shop"}).status == 200
    missing = {"projectId": "another", "parent": {"type": "folder", "id": "1"}}

    assert api.post("/v1/projects", {"projectId": "web-shop"}).error["status"] == "ALREADY_EXISTS"
    assert api.post("/v1/projects", missing).error["status"] == "NOT_FOUND"


def test_a_deleted_project_accepts_no_new_resources(api: Api) -> None:
    topic = api.create("topics/orders")
    assert api.delete("/v1/projects/shop").status == 200

    assert api.put("topics/more").error["status"] == "FAILED_PRECONDITION"
    assert api.delete("/v1/projects/shop").error["status"] == "FAILED_PRECONDITION"
    assert api.get("topics/orders").body == topic
    assert api.post("/v1/projects/shop:undelete").body == {}
    assert api.post("/v1/projects/shop:undelete").error["status"] == "FAILED_PRECONDITION"
    assert api.put("topics/more").status == 200


@pytest.mark.parametrize("change", [{"projectId": "other-one"}, {"parent": {"type": "organization", "id": "1"}}])
def test_an_update_neither_renames_nor_moves_a_project(api: Api, change: dict[str, Any]) -> None:
    api.post("/v1/projects", {"projectId": "web-shop", "name": "Shop"})

    assert api.call("PUT", "/v1/projects/web-shop", {"name": "New", **change}).status in (400, 404)
    assert api.get("/v1/projects/web-shop").body["name"] == "Shop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["alpha-one", "beta-two"]),
        ("id:alpha-one", ["alpha-one"]),
        ("projectId=ALPHA*", ["alpha-one"]),
        ("name:second", ["beta-two"]),
        ("labels.team:web", ["alpha-one"]),
        ("labels.team:*", ["alpha-one", "beta-two"]),
        ("labels.isnull:x", []),
        ("labels.a__b:x", []),
        ("labels.contains=yes", ["beta-two"]),
        ("lifecycleState:ACTIVE", ["alpha-one"]),
        ("lifecycleState=DELETE_REQUESTED", ["beta-two"]),
        ("parent.type:folder AND parent.id:700", ["alpha-one"]),
        ("parent.type:folder labels.team:ops", []),
        ("projectNumber:x", []),
    ],
)
def test_a_filter_passes_projects_that_match_all_its_terms(db: None, text: str, expected: list[str]) -> None:
    organization = Organization.objects.create(display_name="example.com")
    folder = Folder.objects.create(display_name="web", organization=organization, number=700)
    Project.objects.create(project_id="alpha-one", folder=folder, labels={"team": "web"})
    Project.objects.create(
        project_id="beta-two",
        display_name="Second",
        labels={"team": "ops", "contains": "yes"},
        delete_requested_at="2026-01-01T00:00:00Z",
    )

    visible = projects.projects_visible(Principal("operator:x", is_superuser=True), filter=text)

    assert [row.project_id for row in visible] == expected


@pytest.mark.any_database
@pytest.mark.parametrize("text", ["x", "a:b", ":", "id:", "labels.:x", "labels.A B:x", "id:a OR id:b", "id:a " * 2000])
def test_a_malformed_filter_is_refused(api: Api, text: str) -> None:
    answer = api.get("/v1/projects?filter=" + text.replace(" ", "%20"))

    assert (answer.status, answer.fields) == (400, ["filter"])
