"""The console's pages of organizations, folders, groups and custom roles."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from pushhub.errors import PushHubError
from pushhub.principals import OPERATOR, Principal
from subscriptions import hierarchy
from subscriptions.api.authentication import session_principal
from subscriptions.iam.members import member_parse
from subscriptions.iammodels import Group, GroupMember, RoleResource
from subscriptions.models import Folder, Organization


class FolderForm(forms.ModelForm):  # type: ignore[type-arg]
    """A folder, in an organization or in another folder."""

    class Meta:
        model = Folder
        fields = ["display_name", "organization", "folder"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.instance.pk is None:
            parents = [parent for parent in (cleaned.get("organization"), cleaned.get("folder")) if parent is not None]
            if len(parents) != 1:
                raise forms.ValidationError(_("Choose an organization or a folder."))
            try:
                hierarchy.depth_check(parents[0])
            except PushHubError as error:
                raise forms.ValidationError(error.message) from error
        return cleaned


class TreeAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page whose new rows are made by a service, so that they begin with an owner."""

    #: May be chosen for a new row only.
    placed_by: tuple[str, ...] = ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return ("display_name", *self.placed_by, *(() if obj is None else ("number", "created_at")))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return () if obj is None else ("number", "created_at", *self.placed_by)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if change:
            obj.save()
        else:
            obj.pk = self.make(obj, session_principal(request) or OPERATOR).pk
            obj.refresh_from_db()

    def make(self, row: Any, caller: Principal) -> Any:
        raise NotImplementedError


@admin.register(Organization)
class OrganizationAdmin(TreeAdmin):
    """Organizations."""

    list_display = ("display_name", "number", "created_at")

    def make(self, row: Any, caller: Principal) -> Organization:
        return hierarchy.organization_create(display_name=row.display_name, caller=caller)


@admin.register(Folder)
class FolderAdmin(TreeAdmin):
    """Folders."""

    form = FolderForm
    placed_by = ("organization", "folder")
    list_display = ("display_name", "number", "organization", "folder")
    list_select_related = ("organization", "folder")

    def make(self, row: Any, caller: Principal) -> Folder:
        return hierarchy.folder_create(display_name=row.display_name, parent=row.parent, caller=caller)


class MemberForm(forms.ModelForm):  # type: ignore[type-arg]
    """A member in the words of policies."""

    class Meta:
        model = GroupMember
        fields = ["member"]

    def clean_member(self) -> str:
        try:
            member = member_parse(self.cleaned_data["member"], field="member")
        except PushHubError as error:
            raise forms.ValidationError(error.message) from error
        if not member.startswith(("user:", "serviceAccount:", "group:")):
            raise forms.ValidationError(_("A group has users, service accounts and other groups."))
        return member


class MemberInline(admin.TabularInline):  # type: ignore[type-arg]
    """The members of a group."""

    model = GroupMember
    form = MemberForm
    extra = 3


class GroupForm(forms.ModelForm):  # type: ignore[type-arg]
    """The address that policies name a group by."""

    class Meta:
        model = Group
        fields = ["email"]

    def clean_email(self) -> str:
        try:
            return member_parse(f"group:{self.cleaned_data['email']}", field="email").removeprefix("group:")
        except PushHubError as error:
            raise forms.ValidationError(error.message) from error


@admin.register(Group)
class GroupAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Groups, which policies bind as `group:{email}`."""

    form = GroupForm
    inlines = (MemberInline,)
    list_display = ("email",)
    search_fields = ("email", "members__member")


@admin.register(RoleResource)
class RoleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Custom roles, to look at: they are made over REST."""

    list_display = ("role_id", "title", "project", "organization", "deleted")
    list_select_related = ("project", "organization")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
