"""The console's form of a topic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.errors import PushHubError
from subscriptions.admin import durations
from subscriptions.admin.resource_forms import Fields, Section, drop_empty, refused, small_text, stored_one_by_one
from subscriptions.admin.transform_fields import TRANSFORMS_SECTION, TransformsForm, transforms_initial
from subscriptions.iam.methods import authorize
from subscriptions.models import Project, Topic
from subscriptions.resources.topics import FIELDS
from subscriptions.services.topics import create_topic, update_topic


class TopicForm(TransformsForm):
    """A topic."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    topic_id = forms.CharField(label=_("Topic ID"))
    labels = forms.JSONField(label=_("Labels"), required=False, initial=dict, widget=small_text())
    message_retention = durations.DurationField(
        label=_("Message retention"), required=False, help_text=_("For example 12h or 7d; empty: off")
    )

    sections = (
        Section(_("Name"), ("project", "topic_id")),
        Section(_("Message retention"), ("message_retention",), "collapse"),
        TRANSFORMS_SECTION,
        Section(_("Labels"), ("labels",), "collapse"),
    )
    offered = {"project": "pubsub.topics.create"}
    places = {"name": "topic_id", "labels": "labels", "messageRetentionDuration": "message_retention"}

    class Meta:
        model = Topic
        fields: ClassVar[list[str]] = []

    def refusals(self) -> Iterator[PushHubError]:
        entered = self.cleaned_data
        fields = drop_empty(labels=entered.get("labels"), messageRetentionDuration=entered.get("message_retention"))
        yield from stored_one_by_one(FIELDS, Topic(), fields)
        if self.is_new and entered.get("project"):
            name = names.topic_name(entered["project"].project_id, entered.get("topic_id", ""))
            yield from refused(partial(names.parse_topic, name))
        yield from self.transform_refusals(entered.get("project") if self.is_new else self.instance.project)

    def carry_out(self) -> Topic:
        entered = self.cleaned_data
        fields = drop_empty(
            labels=entered["labels"],
            messageRetentionDuration=entered["message_retention"],
            messageTransforms=self.transforms(),
        )
        if self.is_new:
            name = names.topic_name(entered["project"].project_id, entered["topic_id"])
            authorize(self.caller, "google.pubsub.v1.Publisher.CreateTopic", {"name": name})
            return create_topic(name=name, topic=fields, caller=self.caller)
        request = {"topic": fields, "updateMask": "labels,messageRetentionDuration,messageTransforms"}
        authorize(self.caller, "google.pubsub.v1.Publisher.UpdateTopic", {"topic.name": self.instance.name})
        return update_topic(name=self.instance.name, request=request)


def topic_initial(topic: Topic) -> Fields:
    """Return a topic as its form shows it."""
    return {
        "labels": topic.labels,
        "message_retention": durations.seconds_text(topic.message_retention_seconds),
        **transforms_initial(topic.message_transforms),
    }
