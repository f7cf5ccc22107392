"""The console's pages of organizations, folders, groups and custom roles."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.utils.translation import gettext_lazy as _

from pushhub.common.errors import PushHubError
from pushhub.common.principals import Principal
from subscriptions.admin.resource_forms import ServiceForm
from subscriptions.admin.service_admin import ServiceAdmin
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin
from subscriptions.console.texts import error_text
from subscriptions.iam.members import parse_member
from subscriptions.iam.methods import authorize_row
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Folder, Organization, Project
from subscriptions.models.iam import Group, GroupMember, RoleResource
from subscriptions.services import hierarchy

FOLDERS = "google.cloud.resourcemanager.v3.Folders"


class OrganizationForm(ServiceForm):
    display_name = forms.CharField(label=_("display name"))

    places = {"displayName": "display_name"}

    def carry_out(self) -> hierarchy.Parent:
        name = self.cleaned_data["display_name"]
        if self.is_new:
            return hierarchy.create_organization(display_name=name, caller=self.caller)
        return hierarchy.rename_parent(self.instance, display_name=name)


class FolderForm(ServiceForm):
    """A folder, in an organization or in another folder."""

    display_name = forms.CharField(label=_("display name"))
    organization = forms.ModelChoiceField(Organization.objects.all(), label=_("organization"), required=False)
    folder = forms.ModelChoiceField(Folder.objects.all(), label=_("folder"), required=False)

    offered = {"organization": "resourcemanager.folders.create", "folder": "resourcemanager.folders.create"}
    places = {"displayName": "display_name"}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.is_new and (cleaned.get("organization") is None) == (cleaned.get("folder") is None):
            raise forms.ValidationError(_("Choose an organization or a folder."))
        return cleaned

    def carry_out(self) -> hierarchy.Parent:
        entered = self.cleaned_data
        name = entered["display_name"]
        if self.is_new:
            parent = entered["organization"] or entered["folder"]
            return hierarchy.create_folder(display_name=name, parent=parent, caller=self.caller)
        authorize_row(self.caller, f"{FOLDERS}.UpdateFolder", self.instance)
        return hierarchy.rename_parent(self.instance, display_name=name)


class TreeAdmin(ServiceAdmin):
    """The base of the pages of organizations and folders, which contain projects."""

    def delete_by_service(self, row: Any) -> None:
        hierarchy.delete_parent(row)


@admin.register(Organization)
class OrganizationAdmin(TreeAdmin):
    """Organizations. Superusers create, rename and delete them."""

    form = OrganizationForm
    methods = {"view": "google.cloud.resourcemanager.v3.Organizations.GetOrganization"}
    shown = ("number", "created_at")
    list_display = ("display_name", *shown)


@admin.register(Folder)
class FolderAdmin(TreeAdmin):
    form = FolderForm
    methods = {
        "view": f"{FOLDERS}.GetFolder",
        "add": f"{FOLDERS}.CreateFolder",
        "change": f"{FOLDERS}.UpdateFolder",
        "delete": f"{FOLDERS}.DeleteFolder",
    }
    fixed = ("organization", "folder")
    shown = (*fixed, "number", "created_at")
    list_display = ("display_name", "number", "organization", "folder")
    list_select_related = ("organization", "folder")


class MemberForm(forms.ModelForm):  # type: ignore[type-arg]
    """A member, written as in policies."""

    class Meta:
        model = GroupMember
        fields = ["member"]

    def clean_member(self) -> str:
        try:
            member = parse_member(self.cleaned_data["member"], field="member")
        except PushHubError as error:
            raise forms.ValidationError(error_text(error)) from error
        if not member.startswith(("user:", "serviceAccount:", "group:")):
            raise forms.ValidationError(_("A group has users, service accounts and other groups."))
        return member


class MemberInline(admin.TabularInline):  # type: ignore[type-arg]
    model = GroupMember
    form = MemberForm
    extra = 3


class GroupForm(forms.ModelForm):  # type: ignore[type-arg]
    """The address by which policies name a group."""

    class Meta:
        model = Group
        fields = ["email"]

    def clean_email(self) -> str:
        try:
            return parse_member(f"group:{self.cleaned_data['email']}", field="email").removeprefix("group:")
        except PushHubError as error:
            raise forms.ValidationError(error_text(error)) from error


@admin.register(Group)
class GroupAdmin(ConsoleAdmin):
    """Groups, which policies bind as `group:{email}`.

    Superusers only, because a new member of a group gets everything that any policy grants the group.
    """

    form = GroupForm
    inlines = (MemberInline,)
    list_display = ("email",)
    search_fields = ("email", "members__member")


@admin.register(RoleResource)
class RoleAdmin(ConsoleAdmin):
    """Custom roles, which can only be viewed here. REST creates and changes them."""

    refused = UNCHANGEABLE
    methods = {"view": "google.iam.admin.v1.GetRole"}
    creation = (_("Create one by"), "POST /v1/projects/PROJECT/roles")
    list_display = ("role_id", "title", "project", "organization", "deleted")
    list_select_related = ("project", "organization")

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[RoleResource]) -> QuerySet[RoleResource]:
        """Return the roles of the projects and organizations whose roles the caller may get."""
        method = self.methods[verb]
        return rows.filter(
            Q(project__in=rows_callable(caller, method, Project.objects.order_by()))
            | Q(organization__in=rows_callable(caller, method, Organization.objects.order_by()))
        )
