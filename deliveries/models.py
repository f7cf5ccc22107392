"""What the data plane keeps in the database: the truth of which message is still owed to which subscription."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from subscriptions.models import Snapshot, Subscription, Topic


class Message(models.Model):
    """A published message. It stays while a delivery of it is waiting; its id holds its publish time (ids.py)."""

    id = models.BigIntegerField(primary_key=True)
    # No constraints from here to the control plane: a row more or less there must not cost each insert a look-up,
    # and a deleted topic's messages live on for the subscriptions that still wait for them.
    topic = models.ForeignKey(Topic, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    region = models.CharField(max_length=63)
    data = models.BinaryField()
    attributes = models.TextField(blank=True, help_text="A JSON object of strings, or empty")
    ordering_key = models.TextField(blank=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        indexes = [models.Index(fields=["topic", "id"], name="message_topic")]

    def __str__(self) -> str:
        return str(self.pk)


class Delivery(models.Model):
    """One (message, subscription) pair, from publish until it is settled; the row of an acked one is gone."""

    message = models.ForeignKey(Message, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False)
    region = models.CharField(max_length=63)
    attempts = models.PositiveIntegerField(default=0, help_text="Attempts that were nacked so far")
    last_attempt_at = models.DateTimeField(null=True, blank=True)
    last_result = models.CharField(max_length=40, blank=True, help_text="HTTP status or reason of the last nack")

    class Meta:
        verbose_name = _("delivery")
        verbose_name_plural = _("deliveries")
        indexes = [
            # Pages a backlog in publish order, and finds the rows a settle deletes.
            models.Index(fields=["subscription", "region", "message"], name="delivery_backlog"),
            # Finds out whether a message is still owed to anyone.
            models.Index(fields=["message"], name="delivery_message"),
        ]

    def __str__(self) -> str:
        return f"{self.message_id} to {self.subscription_id}"


class SnapshotMessage(models.Model):
    """A message that a snapshot includes although it is older than its boundary, or excludes although it is not."""

    snapshot = models.ForeignKey(Snapshot, on_delete=models.CASCADE, db_constraint=False, related_name="messages")
    message_id = models.BigIntegerField(db_index=True)
    region = models.CharField(max_length=63)
    included = models.BooleanField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["snapshot", "message_id"], name="snapshot_message")]

    def __str__(self) -> str:
        return f"{self.message_id} in {self.snapshot_id}"
