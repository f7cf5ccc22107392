"""Replays and ingests, how far their parts are, and the runs of all programs of the pipeline."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


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


class PublishReject(models.Model):
    """A row that could not be published, until its job is done and it has gone to the side file."""

    part = models.ForeignKey(PublishPart, on_delete=models.CASCADE, related_name="+")
    row = models.BigIntegerField()
    line = models.TextField()

    class Meta:
        ordering = ["part", "row"]


class PipelineRun(models.Model):
    """What a program of the pipeline did in one run, and why it failed (telemetry/runs.py)."""

    class Kind(models.TextChoices):
        EMBEDDED = "embedded", _("Counting, embedded")
        ROLLUP = "rollup", _("Counting, by Spark")
        BACKFILL = "backfill", _("Backfill")
        ARCHIVE = "archive", _("Archive")
        COMPACTION = "compaction", _("Compaction")
        REPLAY = "replay", _("Replay")
        INGEST = "ingest", _("Ingest")

    kind = models.CharField(_("kind"), max_length=10, choices=Kind)
    job_id = models.CharField(_("job id"), max_length=100, blank=True, help_text="Of a replay or an ingest")
    started_at = models.DateTimeField(_("started"))
    reported_at = models.DateTimeField(_("last report"), help_text="When it last said that it runs")
    finished_at = models.DateTimeField(_("finished"), null=True, blank=True)
    rows = models.BigIntegerField(_("rows"), default=0)
    lag_seconds = models.BigIntegerField(_("lag"), null=True, blank=True, help_text="How far its work was behind")
    failure = models.TextField(_("failure"), blank=True)

    class Meta:
        verbose_name = _("pipeline run")
        verbose_name_plural = _("pipeline runs")
        indexes = [models.Index(fields=["kind", "id"], name="pipelinerun_kind")]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
