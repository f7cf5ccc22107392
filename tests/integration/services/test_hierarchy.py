"""Organizations, folders and groups: created by command and in the console."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from pushhub.common.errors import FailedPrecondition, PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.iam import access, grants
from subscriptions.models import Folder, Organization, Project
from subscriptions.models.iam import Group
from subscriptions.services import hierarchy

ADA = Principal("user:ada@example.com")
OWNED = [{"role": "roles/owner", "members": ["user:root@example.com"]}]


def made_by(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    call_command(*command)
    return capsys.readouterr().out.strip()


def test_commands_create_a_tree(db: None, capsys: pytest.CaptureFixture[str]) -> None:
    organization = made_by(capsys, "organization_create", "Example")
    folder = made_by(capsys, "folder_create", "Shops", "--parent", organization)
    inner = made_by(capsys, "folder_create", "Inner", "--parent", folder)
    call_command("project_create", "shop", "--parent", inner, "--created", "2020-02-29")

    project = Project.objects.get()
    assert project.parent is not None
    assert project.parent.name == inner
    assert project.created_at.date().isoformat() == "2020-02-29"
    assert grants.get_policy(project) == {"etag": "ACAB"}, "nobody owns the project, and its agent needs a grant"


def test_roles_are_granted_and_revoked_by_command(db: None) -> None:
    call_command("project_create", "shop")
    project = Project.objects.get()

    call_command("role_grant", "projects/shop", "roles/viewer", "user:Ada@example.com")
    granted = access.allowed(ADA, "pubsub.topics.get", project)
    call_command("role_revoke", "projects/shop", "roles/viewer", "user:ada@example.com")

    assert granted
    assert not access.allowed(ADA, "pubsub.topics.get", project)
    for bad in (["projects/none", "roles/viewer", "allUsers"], ["projects/shop", "viewer", "allUsers"]):
        with pytest.raises(CommandError):
            call_command("role_grant", *bad)


@pytest.mark.parametrize("parent", ["", "projects/shop", "organizations/7", "organizations/x", "folders/1/2"])
def test_a_folder_needs_a_parent_that_exists(db: None, parent: str) -> None:
    with pytest.raises(CommandError):
        call_command("folder_create", "Shops", "--parent", parent)
    assert not Folder.objects.exists()


def test_creating_needs_permissions(db: None) -> None:
    organization = hierarchy.create_organization(display_name="Example")
    for refused in (
        lambda: hierarchy.create_organization(display_name="Mine", caller=ADA),
        lambda: hierarchy.create_folder(display_name="Mine", parent=organization, caller=ADA),
    ):
        with pytest.raises(PermissionDenied):
            refused()

    grants.grant_role(organization, role="roles/resourcemanager.folderAdmin", member=ADA.member)
    folder = hierarchy.create_folder(display_name="Mine", parent=organization, caller=ADA)

    assert access.allowed(ADA, "resourcemanager.projects.create", folder), "the creator of a folder owns it"


def test_a_moved_project_has_the_policies_of_its_new_parents(db: None) -> None:
    before, after = (hierarchy.create_organization(display_name=name) for name in ("Before", "After"))
    grants.grant_role(before, role="roles/viewer", member=ADA.member)
    project = Project.objects.create(project_id="shop", organization=before)
    assert access.allowed(ADA, "pubsub.topics.get", project)

    project.organization = after
    project.save()

    assert not access.allowed(ADA, "pubsub.topics.get", project)


def test_folders_lie_at_most_ten_deep(db: None) -> None:
    parent: Organization | Folder = hierarchy.create_organization(display_name="Example")
    for depth in range(10):
        parent = hierarchy.create_folder(display_name=str(depth), parent=parent)
    with pytest.raises(FailedPrecondition):
        hierarchy.create_folder(display_name="one more", parent=parent)


def errors(response: Any) -> Any:
    assert response.status_code == 200, response.status_code
    return response.context["adminform"].form.errors


def test_the_console_creates_organizations_and_folders_with_an_owner(client: Client) -> None:
    assert client.post("/admin/subscriptions/organization/add/", {"display_name": "Example"}).status_code == 302
    organization = Organization.objects.get()
    place = {"display_name": "Shops", "organization": organization.pk}
    assert errors(client.post("/admin/subscriptions/folder/add/", {"display_name": "Shops"}))
    assert client.post("/admin/subscriptions/folder/add/", place).status_code == 302
    folder = Folder.objects.get()
    both = {**place, "folder": folder.pk}
    assert errors(client.post("/admin/subscriptions/folder/add/", both))

    assert grants.get_policy(organization)["bindings"] == OWNED
    assert grants.get_policy(folder)["bindings"] == OWNED
    page = f"/admin/subscriptions/folder/{folder.pk}/change/"
    assert client.post(page, {"display_name": "Stores"}).status_code == 302
    assert Folder.objects.get().display_name == "Stores"
    for listing in ("organization", "folder", "group", "roleresource"):
        assert client.get(f"/admin/subscriptions/{listing}/").status_code == 200


def group_form(*members: str, email: str = "Crew@Example.com") -> dict[str, str]:
    form = {"email": email, "members-TOTAL_FORMS": str(len(members)), "members-INITIAL_FORMS": "0"}
    return form | {f"members-{position}-member": member for position, member in enumerate(members)}


def test_the_console_creates_groups(client: Client) -> None:
    answer = client.post("/admin/subscriptions/group/add/", group_form("user:Ada@example.com", "group:all@example.com"))

    assert answer.status_code == 302
    group = Group.objects.get()
    assert group.email == "crew@example.com"
    assert {row.member for row in group.members.all()} == {"user:ada@example.com", "group:all@example.com"}


@pytest.mark.parametrize(
    "form", [group_form("ada"), group_form("allUsers"), group_form("domain:x.com"), group_form(email="a")]
)
def test_the_console_refuses_malformed_members(client: Client, form: dict[str, str]) -> None:
    assert client.post("/admin/subscriptions/group/add/", form).status_code == 200
    assert not Group.objects.exists()
