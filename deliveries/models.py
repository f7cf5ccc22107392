"""What the data plane keeps in the database: the truth of which message is still owed to which subscription."""

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
        indexes = [models.Index(fields=["topic", "id"], name="message_topic")]

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

    def __str__(self) -> str:
        return f"{self.first_id} to {self.last_id}"


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

    def __str__(self) -> str:
        return f"{self.action} dead letters of {self.subscription_id}"


class Metric(models.Model):
    """Sums over the events of a span of time, to which the rollup adds (pipeline/counting/ledger.py)."""

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

    def __str__(self) -> str:
        return f"{self.event} of {self.resource} at {self.at:%Y-%m-%d %H:%M}"


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

    def __str__(self) -> str:
        return f"{self.resource} at {self.at:%Y-%m-%d %H:%M}"


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

    def __str__(self) -> str:
        return f"{self.resource} in {self.region} at {self.at:%Y-%m-%d %H:%M}"


class CounterSample(models.Model):
    """The value of a counter in Redis up to which it has been added to the metrics (observability/counterseries.py)."""

    field = models.CharField(max_length=200, primary_key=True)
    value = models.BigIntegerField()

    def __str__(self) -> str:
        return self.field


class GaugeRound(models.Model):
    """A minute in which gauges were taken. Without it, a subscription without a row in that minute is unknown."""

    at = models.DateTimeField(primary_key=True)

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M}"


class ShippedSegment(models.Model):
    """A segment of the journal in the bucket of PUSHHUB_JOURNAL_BUCKET (journal/shipping.py)."""

    name = models.CharField(max_length=255, primary_key=True)
    #: When its journal was opened, in milliseconds since 1970.
    opened_ms = models.BigIntegerField(db_index=True)
    first_id = models.BigIntegerField()
    last_id = models.BigIntegerField()
    is_counted = models.BooleanField(default=False, db_index=True)

    def __str__(self) -> str:
        return self.name


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


class CountingLease(models.Model):
    """Who counts segments into the metrics, until when unless it is renewed, and how far it is. One row."""

    class Counter(models.TextChoices):
        SPARK = "spark"
        EMBEDDED = "embedded"

    counter = models.CharField(max_length=10, choices=Counter)
    until = models.DateTimeField()
    counted_to = models.DateTimeField(help_text="All events before this time are in the metrics")
    waiting = models.IntegerField(help_text="Sealed segments that are not counted yet")

    def __str__(self) -> str:
        return self.counter


class ArchiveFile(models.Model):
    """The manifest of the archive: a Parquet file that is part of it (pipeline/archiving/archive.py)."""

    path = models.CharField(_("path"), max_length=500, unique=True, help_text="Below the archive's folder")
    first_id = models.BigIntegerField(_("first message id"), help_text="It has messages from this id on")
    last_id = models.BigIntegerField(_("last message id"), help_text="And up to this one")
    rows = models.BigIntegerField(_("rows"))
    bytes = models.BigIntegerField(_("bytes"))
    # The first and the last of the archiver's steps that archived its messages.
    first_step = models.BigIntegerField(_("first step"), default=0)
    last_step = models.BigIntegerField(_("last step"), default=0)
    written_at = models.DateTimeField(_("written"), auto_now_add=True)

    class Meta:
        verbose_name = _("archived file")
        verbose_name_plural = _("archived files")
        ordering = ["first_id", "path"]

    def __str__(self) -> str:
        return self.path


class ArchivedMessage(models.Model):
    """A message of the database that is in the archive, or being written to it. The row goes when its message goes."""

    message_id = models.BigIntegerField(primary_key=True)
    write_id = models.BigIntegerField(help_text="The message is in the archive when no ArchiveLeftover has this id")

    def __str__(self) -> str:
        return str(self.message_id)


class ArchiveLeftover(models.Model):
    """Files of this deployment in the archive's folder that are not part of the archive: the sweep may delete them.

    A write is recorded here before its first file. The transaction that adds its files to the manifest removes the row.
    """

    token = models.CharField(max_length=12, blank=True, help_text="A write: its files have this token in their names")
    path = models.CharField(max_length=500, blank=True, help_text="A file that compaction has replaced")
    replaced_at = models.DateTimeField(null=True, help_text="When that was: readers may need the file for a while")

    def __str__(self) -> str:
        return self.token or self.path


class ArchiveOwner(models.Model):
    """The identity of this deployment, which is also in the archive's folder. There is one row."""

    identity = models.CharField(max_length=32)

    def __str__(self) -> str:
        return self.identity


class PublishJob(models.Model):
    """A replay or an ingest. Its parts are published one by one, by whichever executor of Spark takes them."""

    job_id = models.CharField(_("job id"), max_length=100, unique=True)
    kind = models.CharField(_("kind"), max_length=10, help_text="replay or ingest")
    spec = models.JSONField(_("specification"), help_text="What it was asked to do: the same id must ask for the same")
    total = models.BigIntegerField(
        _("total"), null=True, blank=True, help_text="Messages of the plan; empty: not counted"
    )
    parts = models.PositiveIntegerField(_("parts"), null=True, blank=True, help_text="Empty: not divided yet")
    failure = models.TextField(_("failure"), blank=True, help_text="Why its last run ended early")
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        verbose_name = _("publish job")
        verbose_name_plural = _("publish jobs")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.kind} {self.job_id}"


class PublishPart(models.Model):
    """A part of a job, and how far it has come: moved in the same transaction as what it publishes."""

    job = models.ForeignKey(PublishJob, on_delete=models.CASCADE, related_name="divided")
    number = models.PositiveIntegerField()
    position = models.BigIntegerField(default=0, help_text="Replay: the last message id. Ingest: rows read")
    until = models.BigIntegerField(null=True, help_text="Replay: the last message id that belongs to it")
    fingerprint = models.CharField(max_length=32, blank=True, help_text="Frames: a hash of the published messages")
    published = models.BigIntegerField(default=0)
    rejected = models.BigIntegerField(default=0)
    finished = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="publish_part")]

    def __str__(self) -> str:
        return f"part {self.number}"


class PublishReject(models.Model):
    """A row that could not be published, until its job is done and it has gone to the side file."""

    part = models.ForeignKey(PublishPart, on_delete=models.CASCADE, related_name="+")
    row = models.BigIntegerField()
    line = models.TextField()

    class Meta:
        ordering = ["part", "row"]

    def __str__(self) -> str:
        return f"row {self.row}"
