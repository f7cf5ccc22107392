"""The console's page of replays and ingests: how far each has come, and a form that starts a replay."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.core.exceptions import PermissionDenied
from django.core.validators import RegexValidator
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Sum, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Concat
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.admin.pipeline import standing_of
from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.models import PipelineRun, PublishJob
from deliveries.pipeline import needs
from deliveries.pipeline.jobs.replay import ReplaySpec, begin_replay
from deliveries.pipeline.publishing.publishjobs import JOB_ID
from deliveries.telemetry.runs import is_running
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition, NotFound, PushHubError
from pushhub.common.principals import Principal
from subscriptions.console.base import caller_of
from subscriptions.console.texts import error_text
from subscriptions.iam.methods import GET_SUBSCRIPTION, GET_TOPIC, PUBLISH, SEEK, authorize
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic


@admin.register(PublishJob)
class PublishJobAdmin(ReadOnlyAdmin):
    """Replays and ingests, and how far each has come."""

    methods = {"view": GET_TOPIC}
    list_display = ("job_id", "kind", "published", "total", "rejected", "created_at", "finished_at", "outcome")
    list_filter = ("kind",)
    search_fields = ("job_id",)
    change_list_template = "admin/deliveries/publishjob/change_list.html"

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[PublishJob]) -> QuerySet[PublishJob]:
        """Those that publish to a topic, or to a subscription, that the caller may get."""
        topics = rows_callable(caller, self.methods[verb], Topic.objects.order_by())
        subscriptions = rows_callable(caller, GET_SUBSCRIPTION, Subscription.objects.order_by())
        named = {f"spec_{key}": KeyTextTransform(key, "spec") for key in ("topic", "subscription")}
        return rows.annotate(**named).filter(
            _is_for(topics, "topic", "topics", "topic_id")
            | _is_for(subscriptions, "subscription", "subscriptions", "subscription_id")
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[PublishJob]:
        sums = {"published_sum": Sum("divided__published"), "rejected_sum": Sum("divided__rejected")}
        rows: QuerySet[PublishJob] = super().get_queryset(request).annotate(**sums)
        return rows

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The page looks again by itself while a job is under way."""
        running = self.get_queryset(request).filter(finished_at=None, failure="").exists()
        return super().changelist_view(request, {**(extra_context or {}), "running": running})

    @admin.display(description=gettext_lazy("published"))
    def published(self, job: Any) -> int:
        return job.published_sum or 0

    @admin.display(description=gettext_lazy("rejected"))
    def rejected(self, job: Any) -> int:
        return job.rejected_sum or 0

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, job: PublishJob) -> str:
        """Return why it failed or, while it has not ended, how its last run stands, which may have been killed."""
        if job.failure or job.finished_at is not None:
            return job.failure or "-"
        return standing_of(PipelineRun.objects.filter(job_id=job.job_id).order_by("-pk").first())[1]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [path("replay/", view(self.replay), name="deliveries_replay"), *super().get_urls()]

    def replay(self, request: HttpRequest) -> HttpResponse:
        """A form that starts a replay in a process of its own."""
        caller = caller_of(request)
        if not request.user.has_perm("subscriptions.change_topic"):
            raise PermissionDenied
        form = ReplayForm(request.POST or None, initial=_last_day())
        if request.method == "POST" and form.is_valid():
            try:
                spec = form.spec()
                if spec.subscription:
                    authorize(caller, SEEK, {"subscription": spec.subscription})
                topic = spec.topic or spec.target().topic.name
                authorize(caller, PUBLISH, {"topic": topic})
                job = begin_replay(spec, job_id=form.cleaned_data["job_id"])
                if is_running(job.job_id):
                    raise FailedPrecondition(_("The replay %(id)s runs already.") % {"id": job.job_id})
                start(job, rate=form.cleaned_data["rate"] or 0)
            except PushHubError as error:
                place = "name" if isinstance(error, NotFound) else form.places.get(error.field)
                form.add_error(place, error_text(error))
            else:
                messages.success(request, _("The replay %(id)s has begun.") % {"id": job.job_id})
                return HttpResponseRedirect(reverse("admin:deliveries_publishjob_changelist"))
        context = {"title": _("Replay"), "form": form, "missing": needs.missing()}
        return self.render(request, "admin/deliveries/replay.html", **context)


def _is_for(resources: QuerySet[Any], key: str, collection: str, identifier: str) -> Q:
    """A condition on jobs: their specification names one of the resources."""
    name = Concat(Value("projects/"), F("project__project_id"), Value(f"/{collection}/"), F(identifier))
    return Q(Exists(resources.annotate(full_name=name).filter(full_name=OuterRef(f"spec_{key}"))))


class ReplayForm(forms.Form):
    """What `pipeline replay` takes. Its rules are those of the command."""

    name = forms.CharField(
        label=gettext_lazy("Topic or subscription"),
        widget=AdminTextInputWidget,
        help_text="projects/shop/topics/orders, projects/shop/subscriptions/worker",
    )
    since = forms.DateTimeField(label=gettext_lazy("Published at or after (UTC)"))
    until = forms.DateTimeField(label=gettext_lazy("and before (UTC)"))
    filter = forms.CharField(
        label=gettext_lazy("Filter"),
        required=False,
        widget=AdminTextInputWidget,
        help_text='attributes.kind = "order" AND json.total = "5"',
    )
    rate = forms.IntegerField(label=gettext_lazy("Messages a second, at most"), required=False, min_value=1)
    job_id = forms.CharField(
        label=gettext_lazy("Id"),
        required=False,
        max_length=100,
        validators=[RegexValidator(JOB_ID, gettext_lazy("Begin with a letter or a digit."))],
        widget=AdminTextInputWidget,
        help_text=gettext_lazy(
            "A job publishes each message once under its id. Empty: an id that follows from the other fields."
        ),
    )

    #: The fields of a replay that errors name, and where they are shown.
    places: ClassVar = {"topic": "name", "name": "name", "to": "until", "filter": "filter", "id": "job_id"}

    def spec(self) -> ReplaySpec:
        cleaned = self.cleaned_data
        is_subscription = "/subscriptions/" in cleaned["name"]
        return ReplaySpec(
            topic="" if is_subscription else cleaned["name"],
            subscription=cleaned["name"] if is_subscription else "",
            since=cleaned["since"],
            until=cleaned["until"],
            filter=cleaned["filter"],
        )


def _last_day() -> dict[str, Any]:
    now = utcnow().replace(microsecond=0)
    return {"since": now - timedelta(days=1), "until": now}


def start(job: PublishJob, *, rate: int) -> None:
    """Run a replay's command on this machine; what it says goes to a log beside the data."""
    log = Path(settings.DATA_DIR) / "pipeline.log"
    command = [sys.executable, "-m", "django", "pipeline", "replay", f"--resume={job.job_id}", f"--rate={rate}"]
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command, and arguments that no shell reads
                command,
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except OSError as error:
        raise FailedPrecondition(f"The replay cannot be started: {error.strerror}") from None
    # Who waits for it takes its remains out of the system's table.
    threading.Thread(target=process.wait, name="replay", daemon=True).start()
