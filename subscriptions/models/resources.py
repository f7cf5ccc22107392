"""The resources of the control plane. What the engine uses has columns; the rest is JSON in canonical proto form."""

from __future__ import annotations

import secrets

from django.db import models
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.clock import utcnow

EXACT = "What the API shows, if the seconds are this rounded up"


def new_project_number() -> int:
    """Return twelve digits, as Google's project numbers have."""
    return 100_000_000_000 + secrets.randbelow(900_000_000_000)


def new_unique_id() -> str:
    """Return twenty-one digits, as the unique id of a Google service account has. It is the `sub` of its tokens."""
    return "1" + "".join(secrets.choice("0123456789") for _ in range(20))


class Organization(models.Model):
    """The root of a resource tree."""

    number = models.BigIntegerField(_("number"), unique=True, default=new_project_number)
    display_name = models.CharField(_("display name"), max_length=255)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("organization")
        verbose_name_plural = _("organizations")
        ordering = ["number"]

    def __str__(self) -> str:
        return self.display_name or self.name

    @property
    def name(self) -> str:
        return f"organizations/{self.number}"


class Folder(models.Model):
    """A group of projects and other folders below an organization."""

    number = models.BigIntegerField(_("number"), unique=True, default=new_project_number)
    display_name = models.CharField(_("display name"), max_length=255)
    organization = models.ForeignKey(
        Organization,
        on_delete=models.PROTECT,
        related_name="folders",
        null=True,
        blank=True,
        verbose_name=_("organization"),
    )
    folder = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        related_name="folders",
        null=True,
        blank=True,
        help_text="The folder that contains it",
        verbose_name=_("folder"),
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("folder")
        verbose_name_plural = _("folders")
        ordering = ["number"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(organization=None) ^ models.Q(folder=None), name="folder_has_one_parent"
            )
        ]

    def __str__(self) -> str:
        return self.display_name or self.name

    @property
    def name(self) -> str:
        return f"folders/{self.number}"

    @property
    def parent(self) -> Organization | Folder | None:
        return self.organization or self.folder


class Project(models.Model):
    """The owner of topics, subscriptions and service accounts."""

    project_id = models.CharField(_("project id"), max_length=100, unique=True)
    number = models.BigIntegerField(_("number"), unique=True, default=new_project_number)
    #: A default and not auto_now_add: a project's age decides what its service agent may do (identity/agents.py).
    created_at = models.DateTimeField(_("created"), default=utcnow)
    organization = models.ForeignKey(
        Organization, on_delete=models.PROTECT, related_name="projects", null=True, blank=True
    )
    folder = models.ForeignKey(Folder, on_delete=models.PROTECT, related_name="projects", null=True, blank=True)
    display_name = models.CharField(max_length=100, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    delete_requested_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("project")
        verbose_name_plural = _("projects")
        ordering = ["project_id"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(organization=None) | models.Q(folder=None), name="project_has_at_most_one_parent"
            )
        ]

    def __str__(self) -> str:
        return self.project_id

    @property
    def name(self) -> str:
        return names.project_name(self.project_id)

    @property
    def parent(self) -> Organization | Folder | None:
        return self.organization or self.folder

    @property
    def service_agent(self) -> str:
        """The address of the Google-managed account that mints the push tokens of this project."""
        return names.service_agent_email(self.number)


class Topic(models.Model):
    """A named stream that publishers send to."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="topics")
    topic_id = models.CharField(max_length=255)
    labels = models.JSONField(default=dict, blank=True)
    message_retention_seconds = models.BigIntegerField(null=True, blank=True, help_text="Empty: off")
    message_retention_ms = models.BigIntegerField(null=True, blank=True, help_text=EXACT)
    message_storage_policy = models.JSONField(null=True, blank=True)
    schema_settings = models.JSONField(null=True, blank=True)
    message_transforms = models.JSONField(null=True, blank=True, help_text="Empty: none")
    tags = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        ordering = ["project", "topic_id"]
        constraints = [models.UniqueConstraint(fields=["project", "topic_id"], name="topic_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return names.topic_name(self.project.project_id, self.topic_id)


class Subscription(models.Model):
    """A subscription to a topic: which messages it gets, and whether they are pushed to an endpoint or pulled."""

    class Wrapper(models.TextChoices):
        """The form of a message in a push request."""

        UNSET = "", "default (wrapped)"
        PUBSUB = "pubsub", "wrapped in JSON"
        NONE = "none", "unwrapped"

    project = models.ForeignKey(
        Project, on_delete=models.PROTECT, related_name="subscriptions", verbose_name=_("project")
    )
    subscription_id = models.CharField(max_length=255)
    topic = models.ForeignKey(
        Topic,
        on_delete=models.SET_NULL,
        related_name="subscriptions",
        null=True,
        blank=True,
        help_text="Empty: deleted",
        verbose_name=_("topic"),
    )
    detached = models.BooleanField(_("detached"), default=False)
    paused = models.BooleanField(_("paused"), default=False, help_text="Nothing is pushed until it is resumed")

    push_endpoint = models.CharField(
        _("push endpoint"), max_length=2048, blank=True, help_text="Empty: a pull subscription"
    )
    push_attributes = models.JSONField(default=dict, blank=True)
    oidc_service_account_email = models.CharField(max_length=320, blank=True)
    oidc_audience = models.CharField(max_length=2048, blank=True, help_text="Empty: the endpoint's URL")
    push_wrapper = models.CharField(max_length=6, choices=Wrapper, default=Wrapper.UNSET, blank=True)
    push_write_metadata = models.BooleanField(
        default=False, help_text="Write the metadata of unwrapped messages as headers"
    )

    ack_deadline_seconds = models.PositiveIntegerField(default=10)
    retain_acked_messages = models.BooleanField(default=False)
    message_retention_seconds = models.PositiveIntegerField(default=7 * 86400)
    message_retention_ms = models.BigIntegerField(null=True, blank=True, help_text=EXACT)
    expiration_ttl_seconds = models.BigIntegerField(null=True, blank=True, help_text="Empty: never")
    expiration_ttl_ms = models.BigIntegerField(null=True, blank=True, help_text=EXACT)
    labels = models.JSONField(default=dict, blank=True)
    enable_message_ordering = models.BooleanField(default=False)
    enable_exactly_once_delivery = models.BooleanField(default=False)
    filter = models.CharField(max_length=256, blank=True)

    max_delivery_attempts = models.PositiveIntegerField(default=0, help_text="0: no dead-letter policy")
    dead_letter_topic = models.ForeignKey(
        Topic, on_delete=models.SET_NULL, related_name="dead_letter_sources", null=True, blank=True
    )
    minimum_backoff_ms = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: no retry policy")
    maximum_backoff_ms = models.PositiveIntegerField(null=True, blank=True)
    message_transforms = models.JSONField(null=True, blank=True, help_text="Empty: none")

    tags = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    active_at = models.DateTimeField(default=utcnow, help_text="The hour of the last successful pull or push")

    class Meta:
        verbose_name = _("subscription")
        verbose_name_plural = _("subscriptions")
        ordering = ["project", "subscription_id"]
        constraints = [models.UniqueConstraint(fields=["project", "subscription_id"], name="subscription_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return names.subscription_name(self.project.project_id, self.subscription_id)


class Snapshot(models.Model):
    """A subscription's backlog at one moment, for later seeks. deliveries/retention/snapshots.py has its messages."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="snapshots")
    snapshot_id = models.CharField(max_length=255)
    topic = models.ForeignKey(
        Topic,
        on_delete=models.SET_NULL,
        related_name="snapshots",
        null=True,
        blank=True,
        help_text="Empty: deleted",
        verbose_name=_("topic"),
    )
    topic_pk = models.BigIntegerField(db_index=True, help_text="The key of the topic, even after its deletion")
    boundary_id = models.BigIntegerField(help_text="It has the messages from here on, except those it excludes")
    expire_at = models.DateTimeField(_("expires"), db_index=True)
    labels = models.JSONField(default=dict, blank=True)
    tags = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("snapshot")
        verbose_name_plural = _("snapshots")
        ordering = ["project", "snapshot_id"]
        constraints = [models.UniqueConstraint(fields=["project", "snapshot_id"], name="snapshot_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return names.snapshot_name(self.project.project_id, self.snapshot_id)


class ServiceAccount(models.Model):
    """The identity that signs the pushes of subscriptions with authentication."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="service_accounts")
    email = models.CharField(_("email"), max_length=320, unique=True)
    unique_id = models.CharField(_("unique id"), max_length=21, unique=True, default=new_unique_id)
    display_name = models.CharField(_("display name"), max_length=100, blank=True)
    description = models.CharField(max_length=256, blank=True)
    disabled = models.BooleanField(_("disabled"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    #: Set while it can be undeleted; its email is free for another account meanwhile (services/service_accounts.py).
    deleted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("service account")
        verbose_name_plural = _("service accounts")
        ordering = ["email"]

    def __str__(self) -> str:
        return self.email

    @property
    def name(self) -> str:
        return names.service_account_name(self.project.project_id, self.email)

    @property
    def is_disabled(self) -> bool:
        """Whether it may neither act nor sign. An account with the address of a service agent never may."""
        return self.disabled or names.is_agent_email(self.email)
