"""Replays and ingests with their parts, the runs of all programs of the pipeline, and what is in the archive."""

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


class ArchiveLeftover(models.Model):
    """Files of this deployment in the archive's folder that are not part of the archive: the sweep may delete them.

    A write is recorded here before its first file. The transaction that adds its files to the manifest removes the row.
    A write with a time was given up: another run deletes its files.
    """

    token = models.CharField(max_length=12, blank=True, help_text="A write: its files have this token in their names")
    path = models.CharField(max_length=500, blank=True, help_text="A file that compaction has replaced")
    replaced_at = models.DateTimeField(null=True, help_text="When that was: readers may need the file for a while")


class ArchiveOwner(models.Model):
    """The identity of this deployment, which is also in the archive's folder. There is one row."""

    identity = models.CharField(max_length=32)
