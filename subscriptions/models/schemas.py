"""Schemas of messages: a name and a type, and a row for each revision of the definition."""

from __future__ import annotations

import secrets

from django.db import models
from django.utils.translation import gettext_lazy as _

from pushhub.common import names
from pushhub.common.clock import utcnow


def new_revision_id() -> str:
    """Return eight hexadecimal digits, as in production."""
    return secrets.token_hex(4)


class Schema(models.Model):
    """The format of a topic's messages."""

    class Type(models.TextChoices):
        """The language of the definitions, which never changes."""

        PROTOCOL_BUFFER = "PROTOCOL_BUFFER", "Protocol Buffer"
        AVRO = "AVRO", "Avro"

    project = models.ForeignKey("subscriptions.Project", on_delete=models.PROTECT, related_name="schemas")
    schema_id = models.CharField(max_length=255)
    type = models.CharField(max_length=15, choices=Type)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("schema")
        verbose_name_plural = _("schemas")
        ordering = ["project", "schema_id"]
        constraints = [models.UniqueConstraint(fields=["project", "schema_id"], name="schema_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return names.schema_name(self.project.project_id, self.schema_id)


class SchemaRevision(models.Model):
    """A definition, which never changes after its commit. A revision with a higher key is newer."""

    schema = models.ForeignKey(Schema, on_delete=models.CASCADE, related_name="revisions")
    revision_id = models.CharField(max_length=8, default=new_revision_id)
    definition = models.TextField()
    #: What messages are parsed with: the compiled form of a Protocol Buffer definition; empty for Avro.
    compiled = models.BinaryField(default=bytes, blank=True, editable=False)
    #: The full name of the message, if the caller sent the compiled form (a FileDescriptorSet) and no definition.
    root_message = models.CharField(max_length=1024, default="", blank=True)
    created_at = models.DateTimeField(default=utcnow)

    class Meta:
        verbose_name = _("schema revision")
        verbose_name_plural = _("schema revisions")
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["schema", "revision_id"], name="schema_revision_id")]

    def __str__(self) -> str:
        return f"{self.schema}@{self.revision_id}"

    @property
    def name(self) -> str:
        return f"{self.schema.name}@{self.revision_id}"
