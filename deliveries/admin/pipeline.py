"""The console's page of the pipeline: what runs now, how far it is, and what each run did."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.conf import settings
from django.contrib import admin
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.models import PipelineRun, PublishJob
from deliveries.pipeline import needs
from deliveries.telemetry import runs
from deliveries.telemetry.archive import archive_state
from pushhub.common.clock import duration_text, time_text


@admin.register(PipelineRun)
class PipelineRunAdmin(ReadOnlyAdmin):
    """The runs of the whole deployment, for superusers, below how each program stands."""

    list_display = ("program", "job", "started_at", "duration", "rows", "lag", "outcome")
    list_display_links = None
    list_filter = ("kind",)
    ordering = ("-id",)
    change_list_template = "admin/deliveries/pipelinerun/change_list.html"

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list below how each program stands. The page refreshes itself."""
        last = runs.last_runs()
        programs = [_program(str(label), last.get(kind)) for kind, label in PipelineRun.Kind.choices]
        missing = needs.missing() if settings.ARCHIVING else ""
        extra = {"programs": programs, "missing": missing, "archive": _archive(), **(extra_context or {})}
        return super().changelist_view(request, {"title": _("Pipeline"), **extra})

    @admin.display(description=gettext_lazy("kind"), ordering="kind")
    def program(self, run: PipelineRun) -> str:
        return run.get_kind_display()

    @admin.display(description=gettext_lazy("job id"))
    def job(self, run: PipelineRun) -> str:
        address = f"{reverse('admin:deliveries_publishjob_changelist')}?{urlencode({'q': run.job_id})}"
        return format_html('<a href="{}">{}</a>', address, run.job_id) if run.job_id else "-"

    @admin.display(description=gettext_lazy("duration"))
    def duration(self, run: PipelineRun) -> str:
        return duration_text(runs.duration(run).total_seconds() * 1000)

    @admin.display(description=gettext_lazy("lag"))
    def lag(self, run: PipelineRun) -> str:
        return _seconds_text(run.lag_seconds)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, run: PipelineRun) -> str:
        return standing_of(run)[1]


def _archive() -> list[tuple[str, str]]:
    """Return the label and the text of each figure of the archive."""
    state = archive_state()
    return [
        (_("Archived messages"), str(state.messages)),
        (_("Size of the archive"), filesizeformat(state.bytes)),
        (_("Oldest archived message"), _seconds_text(state.oldest_seconds)),
        (
            _("Oldest message that waits for the archive"),
            _("archiving is off") if state.lag_seconds is None else _seconds_text(state.lag_seconds or None),
        ),
        (
            _("The archive keeps messages"),
            _seconds_text(settings.ARCHIVE_DAYS * 86_400) if settings.ARCHIVE_DAYS else _("for ever"),
        ),
    ]


def _seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(seconds * 1000)


def standing_of(run: PipelineRun | None) -> tuple[str, str]:
    """Return the level and the sentence of a run."""
    if run is None:
        return "none", _("No run is recorded.")
    if run.failure:
        return "bad", _("It failed: %(failure)s") % {"failure": run.failure}
    if run.finished_at is not None:
        return "good", _("Finished at %(time)s.") % {"time": time_text(run.finished_at)}
    if runs.is_silent(run):
        return "bad", _("It gave no sign of life after %(time)s.") % {"time": time_text(run.reported_at)}
    return "good", _("It runs.")


def _program(label: str, run: PipelineRun | None) -> dict[str, Any]:
    """Return how a program stands: its last run, and the progress of its job."""
    level, text = standing_of(run)
    progress = ""
    job = PublishJob.objects.filter(job_id=run.job_id).first() if run is not None and run.job_id else None
    if job is not None and job.total:
        done = job.divided.aggregate(done=Sum("published") + Sum("rejected"))["done"] or 0
        progress = _("%(done)d of %(total)d") % {"done": done, "total": job.total}
    elif run is not None:
        progress = str(run.rows)
    lag = _seconds_text(run.lag_seconds if run is not None else None)
    return {"label": label, "level": level, "text": text, "progress": progress or "-", "lag": lag}
