"""The console's pages of schemas. Revisions are added through the API."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from pushhub.common.clock import time_text
from subscriptions.admin.resource_forms import ServiceForm
from subscriptions.admin.service_admin import MAY_GET_POLICY, ServiceAdmin
from subscriptions.console.texts import TextField
from subscriptions.iam.methods import authorize
from subscriptions.models import Project
from subscriptions.models.schemas import Schema
from subscriptions.services.schemas import create_schema, delete_schema

SCHEMAS = "google.pubsub.v1.SchemaService"


class SchemaForm(ServiceForm):
    """A new schema with its first revision."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    schema_id = forms.CharField(label=_("Schema ID"))
    type = forms.ChoiceField(label=_("Type"), choices=Schema.Type.choices)
    definition = TextField(
        label=_("Definition"), widget=forms.Textarea(attrs={"rows": 12, "cols": 80, "class": "mono"})
    )

    offered = {"project": "pubsub.schemas.create"}
    places = {"schemaId": "schema_id", "name": "schema_id", "schema.type": "type", "schema": "definition"}

    def carry_out(self) -> Schema:
        entered = self.cleaned_data
        parent = entered["project"].name
        authorize(self.caller, f"{SCHEMAS}.CreateSchema", {"parent": parent})
        schema = {"type": entered["type"], "definition": entered["definition"]}
        return create_schema(parent=parent, schema_id=entered["schema_id"], schema=schema, caller=self.caller).schema


@admin.register(Schema)
class SchemaAdmin(ServiceAdmin):
    """Schemas with their revisions."""

    form = SchemaForm
    methods = {"view": f"{SCHEMAS}.GetSchema", "add": f"{SCHEMAS}.CreateSchema", "delete": f"{SCHEMAS}.DeleteSchema"}
    refused = frozenset({"change"})
    services = {"delete": delete_schema}
    fixed = ("project", "schema_id", "type", "definition")
    shown = ("name", "language", "created", "revisions")
    asked_per_row = MAY_GET_POLICY
    list_display = ("name", "language", "revision_count", "created", "permissions")
    search_fields = ("schema_id", "project__project_id")
    list_select_related = ("project",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schema]:
        rows: QuerySet[Schema] = super().get_queryset(request).annotate(revision_total=Count("revisions"))
        return rows

    @admin.display(description=_("Type"), ordering="type")
    def language(self, row: Schema) -> str:
        return row.get_type_display()

    @admin.display(description=_("Revisions"))
    def revision_count(self, row: Any) -> int:
        return int(row.revision_total)

    @admin.display(description=_("created"), ordering="created_at")
    def created(self, row: Schema) -> str:
        return time_text(row.created_at)

    @admin.display(description=_("Revisions"))
    def revisions(self, row: Schema) -> SafeString:
        """Every definition, the newest first."""
        newest_first = row.revisions.order_by("-pk")
        return format_html_join(
            "",
            '<p class="mono">{}</p><pre class="code">{}</pre>',
            (
                (
                    format_html("{} · {}", revision.revision_id, time_text(revision.created_at)),
                    revision.definition or _("Compiled. Root message: %s") % revision.root_message,
                )
                for revision in newest_first
            ),
        )
