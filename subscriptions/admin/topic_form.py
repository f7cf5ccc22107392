"""The console's form of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.errors import PushHubError
from subscriptions.admin.durations import DurationField
from subscriptions.admin.resource_forms import Section, refused, small_text, stored_one_by_one
from subscriptions.admin.transform_fields import TRANSFORMS_SECTION, TransformsForm
from subscriptions.iam.methods import authorize
from subscriptions.models import Project, Topic
from subscriptions.resources.topics import FIELDS
from subscriptions.services.topics import create_topic, update_topic


class TopicForm(TransformsForm):
    """A topic."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    topic_id = forms.CharField(label=_("Topic ID"))
    labels = forms.JSONField(label=_("Labels"), required=False, initial=dict, widget=small_text())
    message_retention = DurationField(
        label=_("Message retention"), required=False, help_text=_("For example 12h or 7d; empty: off")
    )

    sections = (
        Section(_("Name"), ("project", "topic_id")),
        Section(_("Message retention"), ("message_retention",), "collapse"),
        TRANSFORMS_SECTION,
        Section(_("Labels"), ("labels",), "collapse"),
    )
    offered = {"project": "pubsub.topics.create"}
    values = {"labels": "labels", "messageRetentionDuration": "message_retention"}
    places = {"name": "topic_id"}

    class Meta:
        model = Topic
        fields: ClassVar[list[str]] = []

    def refusals(self) -> Iterator[PushHubError]:
        entered = self.cleaned_data
        yield from stored_one_by_one(FIELDS, Topic(), self.values_entered())
        if self.is_new and entered.get("project"):
            name = names.topic_name(entered["project"].project_id, entered.get("topic_id", ""))
            yield from refused(partial(names.parse_topic, name))
        yield from self.transform_refusals(entered.get("project") if self.is_new else self.instance.project)

    def carry_out(self) -> Topic:
        entered = self.cleaned_data
        fields = {**self.values_entered(), "messageTransforms": self.transforms()}
        if self.is_new:
            name = names.topic_name(entered["project"].project_id, entered["topic_id"])
            authorize(self.caller, "google.pubsub.v1.Publisher.CreateTopic", {"name": name})
            return create_topic(name=name, topic=fields, caller=self.caller)
        request = {"topic": fields, "updateMask": "labels,messageRetentionDuration,messageTransforms"}
        authorize(self.caller, "google.pubsub.v1.Publisher.UpdateTopic", {"topic.name": self.instance.name})
        return update_topic(name=self.instance.name, request=request)
