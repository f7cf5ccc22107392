"""The credentials of callers. PushHub keeps only what verifies a secret: its digest, or a public key."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from pushhub.common.clock import utcnow


class ServiceAccountKey(models.Model):
    """The public half of a key pair. The account's user has the private half in a key file."""

    account = models.ForeignKey(
        "subscriptions.ServiceAccount", on_delete=models.CASCADE, related_name="keys", verbose_name=_("service account")
    )
    key_id = models.CharField(_("key id"), max_length=40, unique=True)
    certificate = models.TextField(help_text="The public half, as X.509 in PEM")
    uploaded = models.BooleanField(_("uploaded"), default=False, help_text="The user created the key pair")
    disabled = models.BooleanField(_("disabled"), default=False)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"))

    class Meta:
        verbose_name = _("service account key")
        verbose_name_plural = _("service account keys")
        ordering = ["created_at", "pk"]

    def __str__(self) -> str:
        return self.key_id

    @property
    def name(self) -> str:
        return f"{self.account.name}/keys/{self.key_id}"

    @property
    def has_expired(self) -> bool:
        return self.expires_at <= utcnow()


class AccessToken(models.Model):
    """An opaque bearer token, stored as its SHA-256 digest."""

    digest = models.CharField(max_length=64, unique=True)
    member = models.CharField(_("member"), max_length=340, db_index=True, help_text="user:ada@example.com")
    account = models.ForeignKey(
        "subscriptions.ServiceAccount", on_delete=models.CASCADE, related_name="access_tokens", null=True, blank=True
    )
    key = models.ForeignKey(
        ServiceAccountKey, on_delete=models.CASCADE, related_name="access_tokens", null=True, blank=True
    )
    scopes = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), db_index=True)

    class Meta:
        verbose_name = _("access token")
        verbose_name_plural = _("access tokens")
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.pk} {self.member}"

    @property
    def has_expired(self) -> bool:
        return self.expires_at <= utcnow()


class UsedAssertion(models.Model):
    """An assertion that was exchanged at /token, so that it isn't exchanged again."""

    digest = models.CharField(max_length=64, unique=True)
    first_used_at = models.DateTimeField()
    #: From this moment on the assertion is refused because it has expired.
    expires_at = models.DateTimeField(db_index=True)
