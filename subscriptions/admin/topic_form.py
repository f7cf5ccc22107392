"""The console's form of a topic."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from subscriptions import selectors
from subscriptions.admin.durations import DurationField
from subscriptions.admin.resource_forms import Fields, Section, small_text, wide_line
from subscriptions.admin.transform_fields import STAND_IN, TRANSFORMS_SECTION, TransformsForm
from subscriptions.console.texts import TextsField
from subscriptions.iam.methods import CREATE_TOPIC, authorize
from subscriptions.models import Project, Topic
from subscriptions.models.schemas import Schema
from subscriptions.resources.topics import FIELDS
from subscriptions.services.topics import create_topic, update_topic

#: An update leaves these alone unless one is changed: a schema that has been deleted can't be stored again.
SCHEMA_FIELDS = ("schema", "encoding", "first_revision", "last_revision")


class TopicForm(TransformsForm):
    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    topic_id = forms.CharField(label=_("Topic ID"))
    labels = TextsField(label=_("Labels"), required=False, initial=dict, widget=small_text())
    message_retention = DurationField(
        label=_("Message retention"), required=False, help_text=_("For example 12h or 7d; empty: off")
    )
    schema = forms.ModelChoiceField(
        Schema.objects.select_related("project"),
        label=_("Schema"),
        required=False,
        help_text=_("Messages that do not match it are refused"),
    )
    encoding = forms.ChoiceField(
        label=_("Encoding of messages"), required=False, choices=[("JSON", "JSON"), ("BINARY", _("binary"))]
    )
    first_revision = forms.CharField(
        label=_("Oldest revision"), required=False, help_text=_("The ID of a revision; empty: no limit")
    )
    last_revision = forms.CharField(
        label=_("Newest revision"), required=False, help_text=_("The ID of a revision; empty: no limit")
    )
    regions = forms.CharField(
        label=_("Regions that may store messages"),
        required=False,
        widget=wide_line(),
        help_text=_("Separated by commas; empty: all regions"),
    )
    enforce_in_transit = forms.BooleanField(label=_("Refuse publishing and pulling in other regions"), required=False)

    sections = (
        Section(_("Name"), ("project", "topic_id")),
        Section(_("Message retention"), ("message_retention",), "collapse"),
        Section(_("Schema"), SCHEMA_FIELDS, "collapse"),
        Section(_("Message storage policy"), ("regions", "enforce_in_transit"), "collapse"),
        TRANSFORMS_SECTION,
        Section(_("Labels"), ("labels",), "collapse"),
    )
    offered = {"project": "pubsub.topics.create", "schema": "pubsub.schemas.attach"}
    values = {
        "labels": "labels",
        "messageRetentionDuration": "message_retention",
        "schemaSettings.schema": "schema",
        "schemaSettings.encoding": "encoding",
        "schemaSettings.firstRevisionId": "first_revision",
        "schemaSettings.lastRevisionId": "last_revision",
        "messageStoragePolicy.allowedPersistenceRegions": "regions",
        "messageStoragePolicy.enforceInTransit": "enforce_in_transit",
    }
    places = {"name": "topic_id"}

    def values_entered(self, **given: Any) -> Fields:
        schema, is_enforced = self.cleaned_data.get("schema"), self.cleaned_data.get("enforce_in_transit")
        regions = [region.strip() for region in self.cleaned_data.get("regions", "").split(",") if region.strip()]
        values = super().values_entered(
            schema=schema.name if schema else None,
            regions=regions or None,
            enforce_in_transit=is_enforced or None,
            **given,
        )
        if schema is None:
            values.pop("schemaSettings", None)
        return values

    def carry_out(self) -> Topic:
        fields = {**self.values_entered(), "messageTransforms": self.transforms()}
        if self.is_new:
            name = names.topic_name(self._project().project_id, self.cleaned_data.get("topic_id", STAND_IN))
            authorize(self.caller, CREATE_TOPIC, {"name": name})
            return create_topic(name=name, topic=fields, caller=self.caller)
        unchanged = {"schemaSettings"} if set(self.changed_data).isdisjoint(SCHEMA_FIELDS) else set()
        request = {"topic": fields, "updateMask": ",".join(sorted({*FIELDS.stored_mutable} - unchanged))}
        authorize(self.caller, "google.pubsub.v1.Publisher.UpdateTopic", {"topic.name": self.instance.name})
        return update_topic(name=self.instance.name, request=request, caller=self.caller)

    @classmethod
    def initial_for(cls, row: Topic) -> Fields:
        initial = cls.initial_of(FIELDS.show(row))
        name = initial["schema"]
        schema = selectors.get_schema(name=name) if name not in ("", names.DELETED_SCHEMA) else None
        encoding = initial["encoding"] or "JSON"
        return {**initial, "schema": schema, "encoding": encoding, "regions": ", ".join(initial["regions"])}
