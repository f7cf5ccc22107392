"""The admin's forms. They carry no rule of their own: each calls the API's service and shows what that answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.errors import PushHubError
from pushhub.common.principals import OPERATOR, Principal
from pushhub.common.protojson import duration_format
from subscriptions.iam.methods import authorize
from subscriptions.iam.visible import rows_held
from subscriptions.identity import agents
from subscriptions.models import Project, ServiceAccount, Subscription, Topic
from subscriptions.services import hierarchy, service_accounts
from subscriptions.services.projects import project_create
from subscriptions.services.subscriptions import subscription_create, subscription_update
from subscriptions.services.topics import topic_create, topic_update

Fields = dict[str, Any]


def _small() -> forms.Textarea:
    return forms.Textarea(attrs={"rows": 3, "cols": 60})


def _wide() -> forms.TextInput:
    return forms.TextInput(attrs={"size": 60})


class AccountField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A service account, with a word on whether pushes could be signed as it."""

    def label_from_instance(self, obj: Any) -> str:
        if agents.accounts_signable([obj.email]):
            return str(obj.email)
        return _("%(email)s (disabled, or the service agent may not sign for it)") % {"email": obj.email}


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    """Carries out its service as the last step of validation, so that a refusal is an error at its field.

    The service is one transaction: a form with an error has changed nothing.
    """

    #: Who is signed in, set by the page. The table of methods counts here as it does for the API.
    caller: ClassVar[Principal] = OPERATOR
    #: What the caller must hold on a resource for a field to offer it.
    offered: ClassVar[Mapping[str, str]] = {}
    #: The API's field paths and the form's fields that give them; the longest path that fits wins.
    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            if isinstance(field, forms.ModelChoiceField) and field.queryset is not None:
                offered = rows_held(self.caller, self.offered[name], field.queryset)
                field.queryset = offered | field.queryset.filter(**self._current(name, field))

    def _current(self, name: str, field: Any) -> dict[str, Any]:
        """The row that is chosen already: it stays on offer, so that saving the form doesn't take it away."""
        value = self.initial.get(name)
        return {field.to_field_name or "pk": getattr(value, "pk", value)} if value else {"pk__in": ()}

    def _post_clean(self) -> None:
        """Instead of the model's own validation, which would be a second set of rules."""
        if self.errors:
            return
        try:
            self.instance = self.carry_out()
        except PushHubError as error:
            self.add_error(self._place_of(error.field), error.message)

    def carry_out(self) -> Any:
        raise NotImplementedError

    def save(self, commit: bool = True) -> Any:
        return self.instance

    def _save_m2m(self) -> None:
        """There is nothing left to save."""

    save_m2m = _save_m2m

    @property
    def is_new(self) -> bool:
        return self.instance.pk is None

    def _place_of(self, path: str) -> str | None:
        fitting = [start for start in self.places if path == start or path.startswith((start + ".", start + "["))]
        field = self.places[max(fitting, key=len)] if fitting else path
        return field if field in self.fields else None


class TopicForm(ServiceForm):
    """A topic."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    topic_id = forms.CharField(label=_("Topic ID"))
    labels = forms.JSONField(label=_("Labels"), required=False, initial=dict, widget=_small())
    message_retention = forms.CharField(
        label=_("Message retention"), required=False, help_text=_("For example 86400s; empty: off")
    )

    offered = {"project": "pubsub.topics.create"}
    places = {"name": "topic_id", "labels": "labels", "messageRetentionDuration": "message_retention"}

    class Meta:
        model = Topic
        fields: ClassVar[list[str]] = []

    def carry_out(self) -> Topic:
        given = self.cleaned_data
        fields = _present(labels=given["labels"], messageRetentionDuration=given["message_retention"])
        if self.is_new:
            name = names.topic_name(given["project"].project_id, given["topic_id"])
            authorize(self.caller, "google.pubsub.v1.Publisher.CreateTopic", {"name": name})
            return topic_create(name=name, topic=fields, caller=self.caller)
        request = {"topic": fields, "updateMask": "labels,messageRetentionDuration"}
        authorize(self.caller, "google.pubsub.v1.Publisher.UpdateTopic", {"topic.name": self.instance.name})
        return topic_update(name=self.instance.name, request=request)


class SubscriptionForm(ServiceForm):
    """A subscription; without an endpoint it is a pull subscription."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    subscription_id = forms.CharField(label=_("Subscription ID"))
    topic = forms.ModelChoiceField(Topic.objects.select_related("project"), label=_("Topic"))
    push_endpoint = forms.CharField(
        label=_("Endpoint URL"),
        required=False,
        help_text=_("Messages are pushed there; empty: a pull subscription"),
        widget=_wide(),
    )
    service_account = AccountField(
        ServiceAccount.objects.filter(deleted_at=None).select_related("project"),
        label=_("Service account"),
        required=False,
        to_field_name="email",
        help_text=_("Enables authentication: pushes carry a token of this account"),
    )
    audience = forms.CharField(
        label=_("Audience"), required=False, help_text=_("Empty: the endpoint's URL"), widget=_wide()
    )
    wrapper = forms.ChoiceField(
        label=_("Message form"),
        required=False,
        choices=[("", _("Wrapped in JSON")), ("none", _("Unwrapped")), ("metadata", _("Unwrapped, with metadata"))],
    )
    push_attributes = forms.JSONField(
        label=_("Push attributes"),
        required=False,
        initial=dict,
        widget=_small(),
        help_text=_("x-pushhub-rate, x-pushhub-burst, x-pushhub-max-outstanding, x-goog-version"),
    )
    ack_deadline_seconds = forms.IntegerField(label=_("Ack deadline (seconds)"), initial=10)
    message_retention = forms.CharField(label=_("Message retention"), required=False, initial="604800s")
    retain_acked_messages = forms.BooleanField(label=_("Retain acked messages"), required=False)
    minimum_backoff = forms.CharField(label=_("Minimum backoff"), required=False, help_text=_("For example 10s"))
    maximum_backoff = forms.CharField(label=_("Maximum backoff"), required=False, help_text=_("For example 600s"))
    dead_letter_topic = forms.ModelChoiceField(
        Topic.objects.select_related("project"), label=_("Dead letter topic"), required=False
    )
    max_delivery_attempts = forms.IntegerField(label=_("Maximum delivery attempts"), required=False)
    enable_message_ordering = forms.BooleanField(label=_("Message ordering"), required=False)
    filter = forms.CharField(label=_("Filter"), required=False)
    enable_exactly_once_delivery = forms.BooleanField(
        label=_("Exactly-once delivery"), required=False, help_text=_("For subscribers that pull")
    )
    expiration = forms.CharField(
        label=_("Expires after inactivity"),
        required=False,
        initial="2678400s",
        help_text=_("For example 2678400s, which is 31 days; empty: never"),
    )
    labels = forms.JSONField(label=_("Labels"), required=False, initial=dict, widget=_small())

    offered = {
        "project": "pubsub.subscriptions.create",
        "topic": "pubsub.topics.attachSubscription",
        "service_account": "iam.serviceAccounts.get",
        "dead_letter_topic": "pubsub.topics.get",
    }
    places = {
        "name": "subscription_id",
        "topic": "topic",
        "pushConfig": "push_endpoint",
        "pushConfig.oidcToken": "service_account",
        "pushConfig.oidcToken.audience": "audience",
        "pushConfig.attributes": "push_attributes",
        "ackDeadlineSeconds": "ack_deadline_seconds",
        "messageRetentionDuration": "message_retention",
        "retryPolicy": "minimum_backoff",
        "retryPolicy.maximumBackoff": "maximum_backoff",
        "deadLetterPolicy": "dead_letter_topic",
        "deadLetterPolicy.maxDeliveryAttempts": "max_delivery_attempts",
        "enableExactlyOnceDelivery": "enable_exactly_once_delivery",
        "expirationPolicy": "expiration",
    }
    #: What an update may change, by the API's names.
    MUTABLE = (
        "pushConfig",
        "ackDeadlineSeconds",
        "messageRetentionDuration",
        "retainAckedMessages",
        "retryPolicy",
        "deadLetterPolicy",
        "enableExactlyOnceDelivery",
        "expirationPolicy",
        "labels",
    )

    class Meta:
        model = Subscription
        fields: ClassVar[list[str]] = []

    def carry_out(self) -> Subscription:
        given = self.cleaned_data
        changeable = {
            "pushConfig": _push_config(given),
            "ackDeadlineSeconds": given["ack_deadline_seconds"],
            "messageRetentionDuration": given["message_retention"],
            "retainAckedMessages": given["retain_acked_messages"],
            "retryPolicy": _present(minimumBackoff=given["minimum_backoff"], maximumBackoff=given["maximum_backoff"]),
            "deadLetterPolicy": _dead_letter_policy(given),
            "enableExactlyOnceDelivery": given["enable_exactly_once_delivery"],
            "labels": given["labels"],
        }
        # An empty policy is not the same as none: it says that the subscription never expires.
        expiration = {"expirationPolicy": _present(ttl=given["expiration"])}
        if not self.is_new:
            name = self.instance.name
            request = {"subscription": {**_present(**changeable), **expiration}, "updateMask": ",".join(self.MUTABLE)}
            authorize(self.caller, "google.pubsub.v1.Subscriber.UpdateSubscription", {"subscription.name": name})
            return subscription_update(name=name, request=request, caller=self.caller)
        name = names.subscription_name(given["project"].project_id, given["subscription_id"])
        fixed = {
            "topic": given["topic"].name,
            "enableMessageOrdering": given["enable_message_ordering"],
            "filter": given["filter"],
        }
        resources = {"name": name, "topic": given["topic"].name}
        authorize(self.caller, "google.pubsub.v1.Subscriber.CreateSubscription", resources)
        subscription = {**_present(**changeable, **fixed), **expiration}
        return subscription_create(name=name, subscription=subscription, caller=self.caller)


class ServiceAccountForm(ServiceForm):
    """A service account."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    account_id = forms.CharField(label=_("Account ID"), help_text=_("6 to 30 lower-case letters, digits and hyphens"))
    display_name = forms.CharField(label=_("Display name"), required=False)
    description = forms.CharField(label=_("Description"), required=False)

    offered = {"project": "iam.serviceAccounts.create"}
    places = {"accountId": "account_id", "displayName": "display_name", "description": "description"}

    class Meta:
        model = ServiceAccount
        fields: ClassVar[list[str]] = []

    def carry_out(self) -> ServiceAccount:
        given = self.cleaned_data
        texts = {"displayName": given["display_name"], "description": given["description"]}
        if self.is_new:
            project = given["project"]
            request = {"accountId": given["account_id"], "serviceAccount": texts}
            authorize(self.caller, "google.iam.admin.v1.CreateServiceAccount", {"name": project.name})
            return service_accounts.service_account_create(
                project=project.project_id, request=request, caller=self.caller
            )
        name = self.instance.name
        request = {"serviceAccount": texts, "updateMask": "displayName,description"}
        authorize(self.caller, "google.iam.admin.v1.PatchServiceAccount", {"service_account.name": name})
        return service_accounts.service_account_update(name=name, request=request)


class ProjectForm(ServiceForm):
    """A project; its number and service agent come by themselves."""

    project_id = forms.CharField(label=_("Project ID"))
    parent = forms.CharField(
        label=_("Parent"), required=False, help_text=_("organizations/NUMBER or folders/NUMBER; empty: none")
    )

    places = {"projectId": "project_id", "name": "project_id", "parent": "parent"}

    class Meta:
        model = Project
        fields: ClassVar[list[str]] = []

    def carry_out(self) -> Project:
        given = self.cleaned_data
        parent = hierarchy.parent_get(given["parent"], caller=self.caller)
        return project_create(project_id=given["project_id"], parent=parent, caller=self.caller)


def _present(**fields: Any) -> Fields:
    return {name: value for name, value in fields.items() if value not in ("", None, {})}


def _push_config(given: Fields) -> Fields:
    account = given["service_account"]
    token = _present(serviceAccountEmail=account.email if account else "", audience=given["audience"])
    config = _present(pushEndpoint=given["push_endpoint"], attributes=given["push_attributes"], oidcToken=token)
    if given["wrapper"]:
        config["noWrapper"] = {"writeMetadata": given["wrapper"] == "metadata"}
    return config


def _dead_letter_policy(given: Fields) -> Fields:
    topic = given["dead_letter_topic"]
    return _present(deadLetterTopic=topic.name if topic else "", maxDeliveryAttempts=given["max_delivery_attempts"])


def topic_initial(topic: Topic) -> Fields:
    """A topic as its form shows it."""
    return {"labels": topic.labels, "message_retention": _seconds(topic.message_retention_seconds)}


def subscription_initial(row: Subscription) -> Fields:
    """A subscription as its form shows it."""
    unwrapped = "metadata" if row.push_write_metadata else "none"
    return {
        "push_endpoint": row.push_endpoint,
        "service_account": row.oidc_service_account_email,
        "audience": row.oidc_audience,
        "wrapper": unwrapped if row.push_wrapper == Subscription.Wrapper.NONE else "",
        "push_attributes": row.push_attributes,
        "ack_deadline_seconds": row.ack_deadline_seconds,
        "message_retention": _seconds(row.message_retention_seconds),
        "retain_acked_messages": row.retain_acked_messages,
        "minimum_backoff": _milliseconds(row.minimum_backoff_ms),
        "maximum_backoff": _milliseconds(row.maximum_backoff_ms),
        "dead_letter_topic": row.dead_letter_topic,
        "max_delivery_attempts": row.max_delivery_attempts or None,
        "enable_exactly_once_delivery": row.enable_exactly_once_delivery,
        "expiration": _seconds(row.expiration_ttl_seconds),
        "labels": row.labels,
    }


def _seconds(seconds: int | None) -> str:
    return "" if seconds is None else duration_format(seconds * 1000)


def _milliseconds(milliseconds: int | None) -> str:
    return "" if milliseconds is None else duration_format(milliseconds)
