"""Which segments of the journal are counted, which are in the bucket, and who counts."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Segment(models.Model):
    """The ledger: a segment of the journal whose events are in the metrics, or one that could not be read."""

    class State(models.TextChoices):
        COUNTING = "counting", _("being counted")
        COUNTED = "counted", _("counted")
        QUARANTINED = "quarantined", _("quarantined")

    name = models.CharField(_("name"), max_length=255, primary_key=True)
    state = models.CharField(_("state"), max_length=12, choices=State)
    reason = models.CharField(_("reason"), max_length=255, blank=True, help_text="Why it is in quarantine")
    rows = models.BigIntegerField(_("rows"))
    place = models.JSONField(default=list, help_text="The last key that is in the metrics while it is being counted")
    job = models.CharField(_("job"), max_length=40, help_text="Who added it: the rollup or a backfill")
    at = models.DateTimeField(_("time"), db_index=True)

    class Meta:
        verbose_name = _("segment")
        verbose_name_plural = _("segments")

    def __str__(self) -> str:
        return self.name


class ShippedSegment(models.Model):
    """A segment of the journal in the bucket of PUSHHUB_JOURNAL_BUCKET (telemetry/journal/shipping.py)."""

    name = models.CharField(max_length=255, primary_key=True)
    #: When its journal was opened, in milliseconds since 1970.
    opened_ms = models.BigIntegerField(db_index=True)
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    is_counted = models.BooleanField(default=False, db_index=True)


class CountingLease(models.Model):
    """Who counts segments into the metrics, until when unless it is renewed, and how far it is. One row."""

    class Counter(models.TextChoices):
        SPARK = "spark"
        EMBEDDED = "embedded"

    counter = models.CharField(max_length=10, choices=Counter)
    until = models.DateTimeField()
    counted_to = models.DateTimeField(help_text="All events before this time are in the metrics")
    waiting = models.IntegerField(help_text="Sealed segments that are not counted yet")
