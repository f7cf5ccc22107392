"""Sums over events, how subscriptions, topics and snapshots stood minute by minute, and which segments are counted."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Metric(models.Model):
    """Sums over the events of a span of time, to which the rollup adds (telemetry/counting/ledger.py)."""

    project = models.CharField(max_length=63)
    resource = models.CharField(max_length=350, help_text="The full name of a subscription or topic")
    event = models.CharField(max_length=20)
    at = models.DateTimeField(help_text="Where the time begins")
    response_class = models.CharField(max_length=40)
    response_code = models.IntegerField()
    host = models.CharField(max_length=260, blank=True)
    count = models.BigIntegerField()
    bytes = models.BigIntegerField()
    latency_us_sum = models.BigIntegerField()
    latency_us_max = models.BigIntegerField()
    buckets = models.JSONField(default=dict, help_text="Latencies: count by bucket (rules/histogram.py)")

    class Meta:
        abstract = True
        constraints = [
            models.UniqueConstraint(
                fields=["resource", "event", "at", "response_class", "response_code", "host"], name="%(class)s_key"
            )
        ]
        indexes = [
            models.Index(fields=["project", "event", "at"], name="%(class)s_read"),
            models.Index(fields=["at"], name="%(class)s_at"),
        ]


class MetricMinute(Metric):
    """Sums of a minute."""


class MetricHour(Metric):
    """Sums of an hour."""


class MetricDay(Metric):
    """Sums of a day, UTC."""


class GaugeMinute(models.Model):
    """How a subscription stood in a minute; the maintenance worker writes it down, without Spark."""

    project = models.CharField(max_length=63)
    resource = models.CharField(max_length=350, help_text="The full name of a subscription")
    at = models.DateTimeField()
    undelivered = models.BigIntegerField(help_text="Messages not acknowledged")
    oldest_unacked_seconds = models.BigIntegerField()
    outstanding = models.BigIntegerField()
    push_window = models.IntegerField()
    backoff_ms = models.IntegerField()
    unserved = models.BigIntegerField(default=0, help_text="Messages of regions that no push worker serves")
    open_streams = models.IntegerField(default=0, help_text="Open streaming pulls")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["resource", "at"], name="gaugeminute_key")]
        indexes = [
            models.Index(fields=["project", "at"], name="gaugeminute_read"),
            models.Index(fields=["at"], name="gaugeminute_at"),
        ]


class RegionGaugeMinute(models.Model):
    """How much a subscription, a topic or a snapshot had in a region in a minute."""

    project = models.CharField(max_length=63)
    resource = models.CharField(max_length=350, help_text="The full name of a subscription, topic or snapshot")
    region = models.CharField(max_length=63)
    at = models.DateTimeField()
    messages = models.BigIntegerField(default=0, help_text="Messages not acknowledged")
    bytes = models.BigIntegerField(default=0)
    oldest_seconds = models.BigIntegerField(default=0)
    acked_messages = models.BigIntegerField(default=0, help_text="Acknowledged messages that are retained")
    acked_bytes = models.BigIntegerField(default=0)
    oldest_acked_seconds = models.BigIntegerField(default=0)
    kept_messages = models.BigIntegerField(default=0, help_text="Messages that a topic's retention keeps")
    kept_bytes = models.BigIntegerField(default=0)
    oldest_kept_seconds = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["resource", "at", "region"], name="regiongauge_key")]
        indexes = [
            models.Index(fields=["project", "at"], name="regiongauge_read"),
            models.Index(fields=["at"], name="regiongauge_at"),
        ]


class CounterSample(models.Model):
    """Up to which value a counter in Redis has been added to the metrics (telemetry/counting/counterseries.py)."""

    field = models.CharField(max_length=200, primary_key=True)
    value = models.BigIntegerField()


class GaugeRound(models.Model):
    """A minute in which gauges were taken. Without it, a subscription without a row in that minute is unknown."""

    at = models.DateTimeField(primary_key=True)


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
