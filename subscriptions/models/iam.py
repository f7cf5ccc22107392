"""Policies, custom roles, groups, the keys that sign tokens, perimeters, and the audit log."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from pushhub.common.clock import time_text, utcnow


class AccessEpoch(models.Model):
    """Changes whenever the answer to "may this caller do that?" may have changed (iam/epoch.py). There is one row."""

    token = models.BigIntegerField()


class Policy(models.Model):
    """The roles that members hold on one resource, which is named by its kind and primary key (iam/tree.py)."""

    kind = models.CharField(max_length=20)
    resource_pk = models.BigIntegerField()
    #: Grows with each write. The etag is derived from it.
    generation = models.BigIntegerField()
    bindings = models.JSONField(default=list, blank=True)
    audit_configs = models.JSONField(default=list, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name = _("policy")
        verbose_name_plural = _("policies")
        ordering = ["kind", "resource_pk"]
        constraints = [models.UniqueConstraint(fields=["kind", "resource_pk"], name="policy_resource")]

    def __str__(self) -> str:
        return f"{self.kind} {self.resource_pk}"


class RoleResource(models.Model):
    """A custom role of a project or an organization."""

    project = models.ForeignKey(
        "subscriptions.Project",
        on_delete=models.CASCADE,
        related_name="roles",
        null=True,
        blank=True,
        verbose_name=_("project"),
    )
    organization = models.ForeignKey(
        "subscriptions.Organization",
        on_delete=models.CASCADE,
        related_name="roles",
        null=True,
        blank=True,
        verbose_name=_("organization"),
    )
    role_id = models.CharField(_("role id"), max_length=64)
    title = models.CharField(_("title"), max_length=100, blank=True)
    description = models.CharField(_("description"), max_length=300, blank=True)
    permissions = models.JSONField(_("permissions"), default=list, blank=True)
    stage = models.CharField(_("stage"), max_length=12, default="ALPHA")
    deleted = models.BooleanField(_("deleted"), default=False)
    generation = models.BigIntegerField(_("generation"), default=0)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("custom role")
        verbose_name_plural = _("custom roles")
        ordering = ["role_id"]
        constraints = [
            models.UniqueConstraint(fields=["project", "role_id"], name="project_role_name"),
            models.UniqueConstraint(fields=["organization", "role_id"], name="organization_role_name"),
            models.CheckConstraint(
                condition=models.Q(organization=None) ^ models.Q(project=None), name="role_has_one_owner"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        owner = self.project or self.organization
        assert owner is not None
        return f"{owner.name}/roles/{self.role_id}"


class Group(models.Model):
    """A group, which policies name as `group:{email}`."""

    email = models.CharField(_("email"), max_length=320, unique=True)

    class Meta:
        verbose_name = _("group")
        verbose_name_plural = _("groups")
        ordering = ["email"]

    def __str__(self) -> str:
        return self.email


class GroupMember(models.Model):
    """A member of a group: `user:`, `serviceAccount:` or another `group:`."""

    group = models.ForeignKey(Group, on_delete=models.CASCADE, related_name="members")
    member = models.CharField(_("member"), max_length=340, db_index=True, help_text="user:ada@example.com")

    class Meta:
        verbose_name = _("member")
        verbose_name_plural = _("members")
        ordering = ["member"]
        constraints = [models.UniqueConstraint(fields=["group", "member"], name="group_member")]

    def __str__(self) -> str:
        return self.member


class SigningKey(models.Model):
    """An RSA key that signs push tokens. Its public half is published until the key is retired."""

    #: Numbers the keys. Because it is unique, only one of two processes can create the next key.
    generation = models.PositiveIntegerField(unique=True)
    kid = models.CharField(_("key id"), max_length=40, unique=True)
    certificate = models.TextField(_("certificate"), help_text="The public half, as X.509 in PEM")
    private_key = models.TextField(help_text="Encrypted; empty after retirement")
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    signs_from = models.DateTimeField(_("signs from"), default=utcnow, help_text="Verifiers see the key earlier")
    retired_at = models.DateTimeField(_("retired"), null=True, blank=True)

    class Meta:
        verbose_name = _("signing key")
        verbose_name_plural = _("signing keys")
        ordering = ["-generation"]

    def __str__(self) -> str:
        return self.kid


class Perimeter(models.Model):
    """Projects that VPC Service Controls protect. services/perimeters.py has the restrictions."""

    title = models.CharField(_("title"), max_length=100, unique=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    projects = models.ManyToManyField(
        "subscriptions.Project", verbose_name=_("protected projects"), related_name="perimeters"
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ["title"]
        verbose_name = _("service perimeter")
        verbose_name_plural = _("service perimeters")

    def __str__(self) -> str:
        return self.title

    @property
    def name(self) -> str:
        return f"perimeters/{self.title}"


class AuditEntry(models.Model):
    """An administrative change, or a call that was denied. audit.py writes it; nothing changes it."""

    class Outcome(models.TextChoices):
        """Whether the change was carried out."""

        DONE = "done", _("done")
        DENIED = "denied", _("denied")

    at = models.DateTimeField(_("time"), default=utcnow, db_index=True)
    caller = models.CharField(_("who"), max_length=400, db_index=True)
    address = models.CharField(_("from address"), max_length=64, blank=True)
    surface = models.CharField(_("surface"), max_length=20)
    method = models.CharField(_("method"), max_length=200, blank=True)
    action = models.CharField(_("action"), max_length=100)
    kind = models.CharField(_("kind"), max_length=40)
    resource = models.CharField(_("resource"), max_length=700, db_index=True)
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)
    outcome = models.CharField(_("outcome"), max_length=10, choices=Outcome, default=Outcome.DONE)
    left_out = models.PositiveIntegerField(
        _("left out"), default=0, help_text=_("Later denied calls of the same caller that have no entry of their own")
    )

    class Meta:
        ordering = ["-at", "-id"]
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit log")
        indexes = [models.Index(fields=["caller", "outcome", "at"], name="audit_caller")]

    def __str__(self) -> str:
        return f"{time_text(self.at)} {self.caller} {self.action} {self.resource}"
