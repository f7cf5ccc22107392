"""What is still owed to whom: messages, deliveries, publishes that are not complete yet, and what was given up."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from subscriptions.models import Snapshot, Subscription, Topic


class Message(models.Model):
    """A published message. It stays while a delivery of it is waiting; its id holds its publish time (ids.py)."""

    id = models.BigIntegerField("ID", primary_key=True)
    # No constraints from here to the control plane: a row more or less there must not cost each insert a look-up,
    # and a deleted topic's messages live on for the subscriptions that still wait for them.
    topic = models.ForeignKey(
        Topic, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, verbose_name=_("topic")
    )
    region = models.CharField(_("region"), max_length=63)
    data = models.BinaryField()
    attributes = models.TextField(_("attributes"), blank=True, help_text="A JSON object of strings, or empty")
    ordering_key = models.TextField(_("ordering key"), blank=True)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        indexes = [
            models.Index(fields=["topic", "id"], name="message_topic"),
            # Finds the last message of an ordering key, behind which the next one comes.
            models.Index(
                fields=["topic", "ordering_key", "id"], name="message_key", condition=models.Q(ordering_key__gt="")
            ),
        ]

    def __str__(self) -> str:
        return str(self.pk)


class Delivery(models.Model):
    """One (message, subscription) pair, from publish until it is settled; the row of an acked one is gone."""

    message = models.ForeignKey(
        Message, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, verbose_name=_("message")
    )
    subscription = models.ForeignKey(
        Subscription, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, verbose_name=_("subscription")
    )
    region = models.CharField(_("region"), max_length=63)
    attempts = models.PositiveIntegerField(_("attempts"), default=0, help_text="Attempts that were nacked so far")
    last_attempt_at = models.DateTimeField(_("last attempt"), null=True, blank=True)
    last_result = models.CharField(
        _("last result"), max_length=40, blank=True, help_text="HTTP status or reason of the last nack"
    )
    seek = models.IntegerField(
        db_default=0, editable=False, help_text="The number of the last seek that made the subscription owe it, or 0"
    )

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


class PendingPublish(models.Model):
    """A large publish that is not complete yet: it may have deliveries already, but no messages (fanout.py)."""

    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    ids = models.JSONField(help_text="The ids of its messages")
    created_at = models.DateTimeField(auto_now_add=True)
    abandoned = models.BooleanField(default=False, help_text="Its deliveries are being removed")


class LostOffer(models.Model):
    """A message of a lane that Redis was not told of, and may have read beyond, or a change of it (lostoffers.py)."""

    subscription_id = models.BigIntegerField()
    region = models.CharField(max_length=63)
    message_id = models.BigIntegerField(help_text="A message, or 0 for other settings, or -1 for another backlog")

    class Meta:
        indexes = [models.Index(fields=["subscription_id", "region", "message_id"], name="lostoffer_lane")]


class RegionHold(models.Model):
    """Which region's Redis and workers have the messages of a region (store/regionholds.py)."""

    region = models.CharField(max_length=63, primary_key=True)
    holder = models.CharField(max_length=63)
    renewed_at = models.DateTimeField(help_text="When a push worker of the holder lived last")
    held_since = models.DateTimeField()
    wanted_at = models.DateTimeField(null=True, help_text="When the region asked for itself last")


class SnapshotMessage(models.Model):
    """A message that a snapshot includes although it is older than its boundary, or excludes although it is not."""

    # A snapshot that is deleted or never completed leaves its rows to a sweep (retention/snapshots.py).
    snapshot = models.ForeignKey(Snapshot, on_delete=models.DO_NOTHING, db_constraint=False, related_name="messages")
    message_id = models.BigIntegerField(db_index=True)
    region = models.CharField(max_length=63)
    included = models.BooleanField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["snapshot", "message_id"], name="snapshot_message")]


class DeadLetter(models.Model):
    """A message that was published to a dead-letter topic, until somebody acknowledges, redrives or discards it."""

    message = models.OneToOneField(
        Message, on_delete=models.DO_NOTHING, db_constraint=False, primary_key=True, verbose_name=_("message")
    )
    subscription = models.ForeignKey(
        Subscription, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, verbose_name=_("subscription")
    )
    source_id = models.BigIntegerField(_("original message"), help_text="The id of the message in the subscription")
    attempts = models.PositiveIntegerField(_("attempts"))
    result = models.CharField(
        _("last result"), max_length=40, blank=True, help_text="HTTP status or reason of the last nack; empty: pulled"
    )
    replaced = models.TextField(
        blank=True,
        help_text="The attributes that those of the dead letter replaced, as a JSON object; a redrive puts them back",
    )
    is_kept = models.BooleanField(
        default=False, help_text="No subscription of the dead-letter topic got it, so this row keeps its message"
    )

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        indexes = [
            models.Index(fields=["subscription", "message"], name="deadletter_of"),
            models.Index(fields=["subscription", "result", "attempts", "message"], name="deadletter_reasons"),
        ]

    def __str__(self) -> str:
        return str(self.message_id)


class DeadLetterJob(models.Model):
    """The order to redrive or discard dead letters of a subscription at a rate: chosen ones, or all up to an id."""

    class Action(models.TextChoices):
        REDRIVE = "redrive", _("Redrive")
        DISCARD = "discard", _("Discard")

    subscription = models.ForeignKey(Subscription, on_delete=models.DO_NOTHING, db_constraint=False)
    action = models.CharField(max_length=10, choices=Action)
    last_id = models.BigIntegerField(help_text="Dead letters with higher ids came after the order")
    chosen_ids = models.JSONField(null=True, help_text="The message ids of the chosen dead letters; null: all of them")
    position = models.BigIntegerField(default=0, help_text="The last dead letter that was looked at")
    rate = models.PositiveIntegerField(help_text="Dead letters a second, at most")
    member = models.CharField(max_length=400, help_text="Who ordered it: the policies are asked again at each batch")
    is_superuser = models.BooleanField(default=False)
    unique_id = models.CharField(max_length=30, blank=True)
    total = models.BigIntegerField()
    done = models.BigIntegerField(default=0)
    failure = models.TextField(blank=True, help_text="Why it ended early")
    created_at = models.DateTimeField(auto_now_add=True)
    advanced_at = models.DateTimeField(null=True, help_text="When its last batch was moved")
    finished_at = models.DateTimeField(null=True, db_index=True)
