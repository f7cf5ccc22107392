"""The console's page of a resource's policy: who holds which role on it, granted here or above."""

from __future__ import annotations

from typing import Any

from django import forms
from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied as NotForYou
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pushhub.common.errors import PermissionDenied, PushHubError
from pushhub.common.principals import Principal
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin, caller_of
from subscriptions.console.tabs import tabs_of
from subscriptions.console.texts import denied_text, error_text
from subscriptions.iam import grants, policies, tree
from subscriptions.iam.methods import GET_POLICY, SET_POLICY, authorize, may_call
from subscriptions.iam.roles import PREDEFINED
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Organization, Project, Subscription, Topic
from subscriptions.models.iam import Policy, RoleResource


class GrantForm(forms.Form):
    """A form that binds one more member to a role."""

    member = forms.CharField(
        label=gettext_lazy("Member"),
        widget=forms.TextInput(attrs={"size": 60, "placeholder": "user:ada@example.com"}),
        help_text=gettext_lazy("user:, serviceAccount:, group: and an email, domain:, allUsers, allAuthenticatedUsers"),
    )
    role = forms.ChoiceField(label=gettext_lazy("Role"))

    def __init__(self, resource: tree.Resource, custom: QuerySet[RoleResource], data: Any = None) -> None:
        super().__init__(data)
        self.fields["role"].choices = [("", _("Choose a role")), *role_choices(resource, custom)]  # type: ignore[attr-defined]


def role_choices(resource: tree.Resource, custom: QuerySet[RoleResource]) -> list[tuple[str, str]]:
    """Return the predefined roles that may be granted on the resource, then the custom ones."""
    kind = tree.kind_of(resource).word
    fitting = [role for role in PREDEFINED.values() if policies.is_supported(role.name, kind)]
    custom_choices = [
        (role.name, f"{role.title or role.role_id} ({role.name})") for role in _of_lineage(resource, custom)
    ]
    return [(role.name, f"{role.title} ({role.name})") for role in fitting] + custom_choices


def _of_lineage(resource: tree.Resource, custom: QuerySet[RoleResource]) -> list[RoleResource]:
    owners = {(type(row), row.pk) for row in tree.lineage(resource)}
    rows = custom.filter(deleted=False).select_related("project", "organization")
    return [row for row in rows if (Project, row.project_id) in owners or (Organization, row.organization_id) in owners]


def link_permissions(resource: tree.Resource) -> SafeString:
    """Return a link to the page, for the lists of resources."""
    page = reverse("admin:subscriptions_policy_of", args=[tree.name_of(resource)])
    return format_html('<a href="{}">{}</a>', page, _("permissions"))


@admin.register(Policy)
class PolicyAdmin(ConsoleAdmin):
    """The list of all stored policies, and the page of one resource's policy."""

    refused = UNCHANGEABLE
    methods = {"view": GET_POLICY}
    fields = ("resource", "bindings_text")
    list_display = ("resource", "bindings_text")
    list_display_links = None
    search_fields = ("bindings",)
    change_list_template = "admin/subscriptions/policies.html"

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Policy]) -> QuerySet[Policy]:
        """Return the policies that the caller may get."""
        condition = Q()
        for model_name, kind in tree.KINDS.items():
            model: Any = apps.get_model("subscriptions", model_name)
            resources = rows_callable(caller, self.methods[verb], model._default_manager.order_by())
            condition |= Q(kind=kind.word, resource_pk__in=resources.values("pk"))
        return rows.filter(condition)

    @admin.display(description=gettext_lazy("Resource"))
    def resource(self, row: Policy) -> SafeString | str:
        resource = tree.resource_of(row.kind, row.resource_pk)
        if resource is None:
            return f"{row.kind} {row.resource_pk}"
        page = reverse("admin:subscriptions_policy_of", args=[tree.name_of(resource)])
        return format_html('<a href="{}">{}</a>', page, tree.name_of(resource))

    @admin.display(description=gettext_lazy("Bindings"))
    def bindings_text(self, row: Policy) -> str:
        return "; ".join(f"{binding['role']}: {', '.join(binding['members'])}" for binding in row.bindings)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("of/", view(self.find), name="subscriptions_policy_find"),
            path("of/<path:name>/", view(self.page), name="subscriptions_policy_of"),
            *super().get_urls(),
        ]

    def find(self, request: HttpRequest) -> HttpResponse:
        name = "".join(request.GET.get("resource", "").splitlines()).strip().strip("/")
        try:
            if name:
                tree.kind_of_name(name)
                return HttpResponseRedirect(reverse("admin:subscriptions_policy_of", args=[name]))
        except PushHubError as error:
            self.message_user(request, error_text(error), messages.ERROR)
        return HttpResponseRedirect(reverse("admin:subscriptions_policy_changelist"))

    def page(self, request: HttpRequest, name: str) -> HttpResponse:
        caller = caller_of(request)
        resource = self._resource(caller, name)
        lineage = tree.lineage(resource)
        custom = self.admin_site._registry[RoleResource].get_queryset(request)
        form = GrantForm(resource, custom, request.POST if "grant" in request.POST else None)
        if request.method == "POST" and self._change(request, caller, resource, form):
            return HttpResponseRedirect(request.path)
        context = {
            "title": _("Permissions on %(name)s") % {"name": name},
            "levels": [_level(row, caller) for row in lineage if _may_read(caller, row)],
            "hides_levels": not all(_may_read(caller, row) for row in lineage),
            "form": form,
            "may_change": may_call(caller, SET_POLICY, resource),
            "tabs": tabs_of(resource, "permissions", caller=caller)
            if isinstance(resource, Subscription | Topic)
            else None,
        }
        return self.render(request, "admin/subscriptions/policy.html", **context)

    def _resource(self, caller: Principal, name: str) -> tree.Resource:
        try:
            authorize(caller, GET_POLICY, {"resource": name})
            return tree.get_resource(name)
        except PermissionDenied as error:
            raise NotForYou(denied_text(error)) from error
        except PushHubError as error:
            raise Http404(error_text(error)) from error

    def _change(self, request: HttpRequest, caller: Principal, resource: tree.Resource, form: GrantForm) -> bool:
        """Grant or revoke, and return whether that succeeded. An error is shown at the form or above the page."""
        try:
            authorize(caller, SET_POLICY, {"resource": tree.name_of(resource)})
            if "revoke" in request.POST:
                role, _space, member = request.POST["revoke"].partition(" ")
                grants.revoke_role(resource, role=role, member=member)
                return True
            if form.is_valid():
                grants.grant_role(resource, **form.cleaned_data, caller=caller)
                return True
        except PushHubError as error:
            if form.is_bound:
                form.add_error(error.field if error.field in form.fields else None, error_text(error))
            else:
                self.message_user(request, error_text(error), messages.ERROR)
        return False


def _may_read(caller: Principal, resource: tree.Resource) -> bool:
    return may_call(caller, GET_POLICY, resource)


def _level(resource: tree.Resource, caller: Principal) -> dict[str, Any]:
    """Return a resource of the lineage, with a row per role and member that says whether the member matches nobody."""
    bindings = grants.get_policy(resource).get("bindings", [])
    rows = [
        (binding["role"], member, grants.matches_nobody(member, caller=caller))
        for binding in bindings
        for member in binding["members"]
    ]
    return {"name": tree.name_of(resource), "rows": rows}
