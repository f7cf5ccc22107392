"""The console's pages of the audit log, which nobody changes, and of service perimeters."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from subscriptions.iammodels import AuditEntry, Perimeter


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Who changed what, from where; before and after side by side."""

    list_display = ("at", "caller", "action", "resource", "surface", "address", "outcome")
    list_filter = ("outcome", "surface", "action", "kind")
    search_fields = ("caller", "resource", "method")
    date_hierarchy = "at"
    list_per_page = 50
    show_full_result_count = False
    fields = ("at", "caller", "address", "surface", "method", "action", "resource", "outcome", "changes")
    readonly_fields = fields

    @admin.display(description=_("Changes"))
    def changes(self, entry: AuditEntry) -> SafeString:
        """Only what differs: field, before, after."""
        before, after = entry.before or {}, entry.after or {}
        names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
        rows = format_html_join(
            "",
            '<tr><th>{}</th><td class="pushhub-before">{}</td><td class="pushhub-after">{}</td></tr>',
            ((name, _text(before.get(name)), _text(after.get(name))) for name in names),
        )
        head = format_html("<tr><th>{}</th><th>{}</th><th>{}</th></tr>", _("Field"), _("Before"), _("After"))
        return format_html("<table><thead>{}</thead><tbody>{}</tbody></table>", head, rows)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Perimeter)
class PerimeterAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Service perimeters: what they forbid is in perimeters.py."""

    list_display = ("title", "enabled", "protected")
    list_filter = ("enabled",)
    search_fields = ("title", "projects__project_id")
    fields = ("title", "enabled", "projects")
    filter_horizontal = ("projects",)

    @admin.display(description=_("Protected projects"))
    def protected(self, row: Perimeter) -> str:
        return ", ".join(project.project_id for project in row.projects.all())


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
