"""The console's form of a subscription. It has Cloud Console's sections, and creates and grants what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django import forms
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.errors import PushHubError
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.admin import forwarding
from subscriptions.admin.durations import DurationField
from subscriptions.admin.resource_forms import AccountField, Fields, Section, small_text, wide_line
from subscriptions.admin.transform_fields import STAND_IN, TRANSFORMS_SECTION, TransformsForm
from subscriptions.console.texts import TextsField
from subscriptions.iam import access, grants
from subscriptions.iam.methods import CREATE_TOPIC, SET_POLICY, authorize, authorize_row
from subscriptions.iam.roles import ACT_AS
from subscriptions.identity import agents
from subscriptions.models import Project, ServiceAccount, Subscription, Topic
from subscriptions.resources import bounds
from subscriptions.resources.subscriptions import FIELDS
from subscriptions.services.service_accounts import create_service_account
from subscriptions.services.subscriptions import create_subscription, update_subscription
from subscriptions.services.topics import create_topic

PUSH, PULL = "push", "pull"
#: Those that make the dead letter policy.
DEAD_LETTER_FIELDS = frozenset({"dead_letter_topic", "new_dead_letter_topic", "max_delivery_attempts"})
ACCOUNT_USER = "roles/iam.serviceAccountUser"


class SubscriptionForm(TransformsForm):
    """A subscription. A new topic, service account and dead-letter topic are created with it, or nothing is."""

    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    subscription_id = forms.CharField(label=_("Subscription ID"))
    topic = forms.ModelChoiceField(Topic.objects.select_related("project"), label=_("Topic"), required=False)
    new_topic = forms.CharField(
        label=_("or a new topic"), required=False, help_text=_("The ID of a topic that is created in the project")
    )
    delivery_type = forms.ChoiceField(
        label=_("Delivery type"),
        required=False,
        initial=PULL,
        choices=[(PULL, _("Pull: subscribers fetch messages")), (PUSH, _("Push: PushHub sends messages to a URL"))],
        widget=forms.RadioSelect,
    )
    push_endpoint = forms.CharField(
        label=_("Endpoint URL"),
        required=False,
        help_text=_("Messages are pushed there"),
        widget=forms.TextInput(
            attrs={"size": 60, "data-check": reverse_lazy("admin:subscriptions_check_endpoint"), "inputmode": "url"}
        ),
    )
    wrapper = forms.ChoiceField(
        label=_("Message form"),
        required=False,
        choices=[("", _("Wrapped in JSON")), ("none", _("Unwrapped")), ("metadata", _("Unwrapped, with metadata"))],
    )
    push_attributes = TextsField(
        label=_("Push attributes"),
        required=False,
        initial=dict,
        widget=small_text(),
        help_text=", ".join((*bounds.PUSHHUB_ATTRIBUTES, "x-goog-version")),
    )
    service_account = AccountField(
        ServiceAccount.objects.filter(deleted_at=None).select_related("project"),
        label=_("Service account"),
        required=False,
        to_field_name="email",
        help_text=_("Enables authentication: pushes carry a token of this account"),
    )
    new_service_account = forms.CharField(
        label=_("or a new service account"),
        required=False,
        help_text=_("The ID of an account that is created in the project"),
    )
    audience = forms.CharField(
        label=_("Audience"), required=False, help_text=_("Empty: the endpoint's URL"), widget=wide_line()
    )
    grant_agent = forms.BooleanField(label=_("Let the service agent sign tokens of this account"), required=False)
    grant_act_as = forms.BooleanField(label=_("Let me act as this account"), required=False)
    enable_exactly_once_delivery = forms.BooleanField(
        label=_("Exactly-once delivery"), required=False, help_text=_("For subscribers that pull")
    )
    ack_deadline_seconds = forms.IntegerField(label=_("Ack deadline (seconds)"), initial=10)
    message_retention = DurationField(
        label=_("Message retention"), required=False, initial="7d", help_text=_("For example 12h or 7d")
    )
    retain_acked_messages = forms.BooleanField(label=_("Retain acked messages"), required=False)
    expiration = DurationField(
        label=_("Expires after inactivity"), required=False, initial="31d", help_text=_("For example 31d; empty: never")
    )
    enable_message_ordering = forms.BooleanField(label=_("Message ordering"), required=False)
    filter = forms.CharField(label=_("Filter"), required=False, widget=wide_line())
    dead_letter_topic = forms.ModelChoiceField(
        Topic.objects.select_related("project"),
        label=_("Dead letter topic"),
        required=False,
        help_text=_("Gets the messages that were attempted too often; empty: they are tried again until they expire"),
    )
    new_dead_letter_topic = forms.CharField(
        label=_("or a new dead letter topic"),
        required=False,
        help_text=_("The ID of a topic that is created in the project"),
    )
    max_delivery_attempts = forms.IntegerField(
        label=_("Maximum delivery attempts"), required=False, help_text=_("5 to 100; empty: 5")
    )
    grant_dead_letters = forms.BooleanField(
        label=_("Let the service agent forward dead letters"),
        required=False,
        help_text=_("Grants it what it lacks: to publish to the topic, and to acknowledge in the subscription"),
    )
    minimum_backoff = DurationField(
        label=_("Minimum backoff"),
        required=False,
        help_text=_("For example 10s; both empty: 100ms to 60s for pushes, and at once for pulls"),
    )
    maximum_backoff = DurationField(label=_("Maximum backoff"), required=False, help_text=_("For example 600s"))
    labels = TextsField(label=_("Labels"), required=False, initial=dict, widget=small_text())

    sections = (
        Section(_("Name and topic"), ("project", "subscription_id", "topic", "new_topic")),
        Section(_("Delivery type"), ("delivery_type",)),
        Section(_("Push"), ("push_endpoint",), "only-push"),
        Section(
            _("Authentication of pushes"),
            ("agent", "service_account", "new_service_account", "audience", "grant_agent", "grant_act_as"),
            "only-push",
        ),
        Section(_("Form and pace of pushes"), ("wrapper", "push_attributes"), "only-push collapse"),
        Section(_("Delivery guarantee"), ("enable_exactly_once_delivery",), "only-pull collapse"),
        Section(
            _("Deadline, retention and expiration"),
            ("ack_deadline_seconds", "message_retention", "retain_acked_messages", "expiration"),
            "collapse",
        ),
        Section(_("Ordering and filter"), ("enable_message_ordering", "filter"), "collapse"),
        Section(
            _("Dead letters"),
            ("forwarding", "dead_letter_topic", "new_dead_letter_topic", "max_delivery_attempts", "grant_dead_letters"),
            "collapse",
        ),
        Section(_("Retries"), ("minimum_backoff", "maximum_backoff"), "collapse"),
        TRANSFORMS_SECTION,
        Section(_("Labels"), ("labels",), "collapse"),
    )
    offered = {
        "project": "pubsub.subscriptions.create",
        "topic": "pubsub.topics.attachSubscription",
        "service_account": "iam.serviceAccounts.get",
        "dead_letter_topic": "pubsub.topics.get",
    }
    permissions = {
        "new_topic": "pubsub.topics.create",
        "new_service_account": "iam.serviceAccounts.create",
        "new_dead_letter_topic": "pubsub.topics.create",
        "grant_agent": "iam.serviceAccounts.setIamPolicy",
        "grant_act_as": "iam.serviceAccounts.setIamPolicy",
        "grant_dead_letters": "pubsub.topics.setIamPolicy",
    }
    values = {
        "pushConfig.pushEndpoint": "push_endpoint",
        "pushConfig.attributes": "push_attributes",
        "pushConfig.noWrapper": "wrapper",
        "pushConfig.oidcToken.serviceAccountEmail": "service_account",
        "pushConfig.oidcToken.audience": "audience",
        "ackDeadlineSeconds": "ack_deadline_seconds",
        "messageRetentionDuration": "message_retention",
        "retainAckedMessages": "retain_acked_messages",
        "retryPolicy.minimumBackoff": "minimum_backoff",
        "retryPolicy.maximumBackoff": "maximum_backoff",
        "deadLetterPolicy.deadLetterTopic": "dead_letter_topic",
        "deadLetterPolicy.maxDeliveryAttempts": "max_delivery_attempts",
        "enableExactlyOnceDelivery": "enable_exactly_once_delivery",
        "expirationPolicy.ttl": "expiration",
        "labels": "labels",
        "enableMessageOrdering": "enable_message_ordering",
        "filter": "filter",
    }
    places = {"name": "subscription_id", "topic": "topic", "pushConfig.oidcToken": "push_endpoint"}

    @classmethod
    def unusable(cls, caller: Principal) -> set[str]:
        # Superusers need no grant.
        return super().unusable(caller) | ({"grant_act_as"} if access.is_root(caller) else set())

    def clean(self) -> Fields:
        """Keep only what applies to the delivery type, and require what has to be chosen."""
        entered: Fields = super().clean() or {}
        delivery_type = entered.get("delivery_type")
        for section in self.sections:
            if delivery_type and f"only-{PULL if delivery_type == PUSH else PUSH}" in section.css_class:
                entered |= dict.fromkeys(section.fields)
                for name in section.fields:
                    self.errors.pop(name, None)
        if delivery_type == PUSH and not entered.get("push_endpoint"):
            self.add_error("push_endpoint", _("Enter the URL that messages are pushed to, or choose pull."))
        self._check_choice("topic", "new_topic", is_required="topic" in self.fields)
        self._check_choice("service_account", "new_service_account")
        if delivery_type == PUSH:
            self._check_account()
        has_attempts = "max_delivery_attempts" in self.changed_data and bool(entered.get("max_delivery_attempts"))
        self._check_choice("dead_letter_topic", "new_dead_letter_topic", is_required=has_attempts)
        if not (has_attempts or entered.get("dead_letter_topic") or entered.get("new_dead_letter_topic")):
            entered["max_delivery_attempts"] = None
        return entered

    def _check_choice(self, chosen: str, new: str, *, is_required: bool = False) -> None:
        """Refuse a form with both an existing resource and a new one."""
        if self.cleaned_data.get(chosen) and self.cleaned_data.get(new):
            self.add_error(new, _("Choose one above or name a new one, and not both."))
        elif is_required and not (self.cleaned_data.get(chosen) or self.cleaned_data.get(new) or chosen in self.errors):
            self.add_error(chosen, _("Choose a topic, or name a new one."))

    def _check_account(self) -> None:
        """Refuse an account of another project, and to drop one that was deleted: pushes would go out without a token.

        No choice shows that it was deleted.
        """
        email, entered, project = self.instance.oidc_service_account_email, self.cleaned_data, self._project()
        account = entered.get("service_account")
        if account is not None and project is not None and account.project != project:
            self.add_error("service_account", _("The account has to be one of the subscription's own project."))
        is_replaced = account or entered.get("new_service_account")
        if email and not is_replaced and not ServiceAccount.objects.filter(email=email).exists():
            self.add_error(
                "service_account", _("The account %(email)s was deleted. Choose another.") % {"email": email}
            )

    def _place_of(self, path: str) -> str | None:
        """Return the field, or the one below it for a new resource, if that was refused and is missing now."""
        field = super()._place_of(path)
        return f"new_{field}" if f"new_{field}" in self.errors else field

    @classmethod
    def initial_for(cls, row: Subscription) -> Fields:
        unwrapped = "metadata" if row.push_write_metadata else "none"
        return {
            **cls.initial_of(FIELDS.show(row)),
            "delivery_type": PUSH if row.push_endpoint else PULL,
            "wrapper": unwrapped if row.push_wrapper == Subscription.Wrapper.NONE else "",
            "dead_letter_topic": row.dead_letter_topic,
        }

    def carry_out(self) -> Subscription:
        entered, project = self.cleaned_data, self._project()
        topic = self._topic("topic", "new_topic", project) if self.is_new else None
        account = self._account(project)
        dead_letter_topic = self._topic("dead_letter_topic", "new_dead_letter_topic", project)
        form = entered.get("wrapper")
        values = self.values_entered(
            service_account=account.email if account else "",
            dead_letter_topic=dead_letter_topic.name if dead_letter_topic else "",
            wrapper={"writeMetadata": form == "metadata"} if form else None,
        )
        # An empty policy is not the same as none: it says that the subscription never expires.
        values = {"expirationPolicy": {}, **values, "messageTransforms": self.transforms()}
        row = self._create(values, topic, project) if self.is_new else self._update(values)
        if entered.get("grant_dead_letters") and dead_letter_topic is not None:
            with _errors_at("grant_dead_letters"):
                forwarding.grant_forwarding(row, caller=self.caller)
        return row

    def _create(self, values: Fields, topic: Topic | None, project: Project) -> Subscription:
        name = names.subscription_name(project.project_id, self.cleaned_data.get("subscription_id", STAND_IN))
        resources = {"name": name, "topic": topic.name if topic else ""}
        authorize(self.caller, "google.pubsub.v1.Subscriber.CreateSubscription", resources)
        topic = topic or Topic.objects.create(project=project, topic_id=STAND_IN)
        return create_subscription(name=name, subscription={**values, "topic": topic.name}, caller=self.caller)

    def _update(self, values: Fields) -> Subscription:
        name = self.instance.name
        mask = {*FIELDS.stored_mutable}
        if DEAD_LETTER_FIELDS.isdisjoint(self.changed_data):  # the topic may be deleted, which no field shows
            mask.remove("deadLetterPolicy")
        request = {"subscription": values, "updateMask": ",".join(sorted(mask))}
        authorize(self.caller, "google.pubsub.v1.Subscriber.UpdateSubscription", {"subscription.name": name})
        # Who may not act as the account that there is, is told what else is wrong all the same; nothing is kept then.
        caller = OPERATOR if "service_account" in self.errors else self.caller
        return update_subscription(name=name, request=request, caller=caller)

    def _topic(self, chosen: str, new: str, project: Project) -> Topic | None:
        """Return the topic that one field has, or create the topic that the other field names."""
        topic_id = self.cleaned_data.get(new)
        if not topic_id:
            topic: Topic | None = self.cleaned_data.get(chosen)
            return topic
        name = names.topic_name(project.project_id, topic_id)
        with _errors_at(new):
            authorize(self.caller, CREATE_TOPIC, {"name": name})
            return create_topic(name=name, topic={}, caller=self.caller)

    def _account(self, project: Project) -> ServiceAccount | None:
        """Return the account whose tokens pushes carry. It is created and granted roles if the form says so."""
        entered = self.cleaned_data
        account: ServiceAccount | None = entered.get("service_account")
        if entered.get("new_service_account"):
            with _errors_at("new_service_account"):
                authorize(self.caller, "google.iam.admin.v1.CreateServiceAccount", {"name": project.name})
                request = {"accountId": entered["new_service_account"], "serviceAccount": {}}
                account = create_service_account(project=project.project_id, request=request, caller=self.caller)
        if account is not None and entered.get("grant_agent") and not agents.can_agent_mint(account):
            with _errors_at("grant_agent"):
                authorize_row(self.caller, SET_POLICY, account)
                agents.grant_agent(account, caller=self.caller)
        if account is not None and entered.get("grant_act_as") and not access.allowed(self.caller, ACT_AS, account):
            with _errors_at("grant_act_as"):
                authorize_row(self.caller, SET_POLICY, account)
                grants.grant_role(account, role=ACCOUNT_USER, member=self.caller.member, caller=self.caller)
        return account


@contextmanager
def _errors_at(field: str) -> Iterator[None]:
    """Show an error of the service at a field of the form, whichever field of the request it names."""
    try:
        yield
    except PushHubError as error:
        error.field = field
        raise
