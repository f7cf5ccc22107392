"""The console's pages of the audit log, which nobody changes, and of service perimeters."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import CharField, Exists, F, OuterRef, Q, QuerySet, Value
from django.db.models.functions import Cast, Concat, StrIndex
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from pushhub.common.errors import InvalidArgument
from pushhub.common.principals import Principal
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin, caller_of
from subscriptions.console.tabs import tabs_of
from subscriptions.iam.tree import find_resource
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Folder, Organization, Project, Subscription, Topic
from subscriptions.models.iam import AuditEntry, Perimeter

PERIMETERS = "google.identity.accesscontextmanager.v1.AccessContextManager"
VERBS = {"view": "Get", "add": "Create", "change": "Update", "delete": "Delete"}


class ResourceFilter(admin.SimpleListFilter):
    """One resource, by its full name. Only an address that names one has the filter."""

    title = _("resource")
    parameter_name = "resource"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get(self.parameter_name)
        return [(chosen, chosen)] if chosen else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        return queryset.filter(resource=self.value()) if self.value() else queryset


@admin.register(AuditEntry)
class AuditEntryAdmin(ConsoleAdmin):
    """Who changed what, from where; before and after side by side."""

    refused = UNCHANGEABLE
    methods = {"view": "google.logging.v2.LoggingServiceV2.ListLogEntries"}
    list_display = ("at", "caller", "action", "resource", "surface", "address", "outcome")
    list_filter = (ResourceFilter, "outcome", "surface", "action", "kind")
    search_fields = ("caller", "resource", "method")
    date_hierarchy = "at"
    list_per_page = 50
    show_full_result_count = False
    fields = ("at", "caller", "address", "surface", "method", "action", "resource", "outcome", "left_out", "changes")
    readonly_fields = fields

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """What happened in the projects, folders and organizations whose log the caller may read."""
        method = self.methods[verb]
        project, folder, organization = (
            rows_callable(caller, method, model.objects.order_by()) for model in (Project, Folder, Organization)
        )
        return rows.filter(
            _lies_in(project, "projects", "project_id")
            | _lies_in(project, "projects", "number")
            | _lies_in(folder, "folders", "number")
            | _lies_in(organization, "organizations", "number")
        )

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The log of one subscription or topic is a tab of its pages."""
        name = request.GET.get(ResourceFilter.parameter_name, "")
        row = _subscription_or_topic(name)
        if row is not None and self.admin_site._registry[type(row)].has_view_permission(request, row):
            tabs = tabs_of(row, "history", caller=caller_of(request))
            extra_context = {**(extra_context or {}), "title": name, "tabs": tabs, "opts": row._meta}
        return super().changelist_view(request, extra_context)

    @admin.display(description=_("Changes"))
    def changes(self, entry: AuditEntry) -> SafeString:
        """Return a table of what differs: field, before, after."""
        before, after = entry.before or {}, entry.after or {}
        names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        rows = format_html_join(
            "",
            '<tr><th>{}</th><td class="pushhub-before">{}</td><td class="pushhub-after">{}</td></tr>',
            ((name, _text(before.get(name)), _text(after.get(name))) for name in names),
        )
        head = format_html("<tr><th>{}</th><th>{}</th><th>{}</th></tr>", _("Field"), _("Before"), _("After"))
        return format_html("<table><thead>{}</thead><tbody>{}</tbody></table>", head, rows)


@admin.register(Perimeter)
class PerimeterAdmin(ConsoleAdmin):
    """Service perimeters. A method on a perimeter needs its permission on each project of the perimeter."""

    methods = {verb: f"{PERIMETERS}.{rpc}ServicePerimeter" for verb, rpc in VERBS.items()}
    list_display = ("title", "enabled", "protected")
    list_filter = ("enabled",)
    search_fields = ("title", "projects__project_id")
    fields = ("title", "enabled", "projects")
    filter_horizontal = ("projects",)

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Perimeter]) -> QuerySet[Perimeter]:
        """Return the perimeters for which the caller may call the method on every project; they have at least one."""
        callable_on = rows_callable(caller, self.methods[verb], Project.objects.order_by())
        inside = Perimeter.projects.through.objects.filter(perimeter=OuterRef("pk"))
        outsiders = inside.filter(project__in=Project.objects.order_by().exclude(pk__in=callable_on))
        return rows.filter(Exists(inside), ~Exists(outsiders))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return a form that offers the projects that the caller may protect."""
        form: Any = super().get_form(request, obj, change=change, **kwargs)
        if "projects" in form.base_fields:
            method = self.methods["change" if change else "add"]
            form.base_fields["projects"].queryset = rows_callable(caller_of(request), method, Project.objects.all())
        return form

    @admin.display(description=_("Protected projects"))
    def protected(self, row: Perimeter) -> str:
        return ", ".join(project.project_id for project in row.projects.all())


def _lies_in(resources: QuerySet[Any], collection: str, segment: str) -> Q:
    """Return the condition that an audit entry is about one of the resources, or about something in it.

    It compares with case, which LIKE would ignore on SQLite.
    """
    prefix = Concat(Value(f"{collection}/"), Cast(segment, CharField()), Value("/"))
    place = StrIndex(Concat(OuterRef("resource"), Value("/")), F("prefix"))
    return Q(Exists(resources.annotate(prefix=prefix, place=place).filter(place=1)))


def _subscription_or_topic(name: str) -> Subscription | Topic | None:
    try:
        row = find_resource(name)
    except InvalidArgument:
        return None
    return row if isinstance(row, Subscription | Topic) else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
