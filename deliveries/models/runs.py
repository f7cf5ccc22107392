"""The runs of the pipeline's programs."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


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
