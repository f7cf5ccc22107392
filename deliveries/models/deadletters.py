"""Messages that were given up, and the orders to redrive or discard them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from deliveries.models.messages import Message
from subscriptions.models import Subscription


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
