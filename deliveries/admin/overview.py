"""The console's first page: what fails, how things stand, and three steps to a first push where nothing is yet."""

from __future__ import annotations

import base64
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from deliveries.admin.chart_pages import LIST_TIME_SERIES
from deliveries.inspection import words
from deliveries.inspection.overview import Overview, health, overview
from deliveries.pipeline.counting.lease import Counter, Progress
from deliveries.publish.request import publish_request_parse
from deliveries.publish.service import message_publish
from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import PushHubError
from subscriptions.console.base import caller_of
from subscriptions.console.navigation import chosen_project
from subscriptions.iam import access
from subscriptions.iam.methods import authorize
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription
from subscriptions.services.subscriptions import subscription_create
from subscriptions.services.topics import topic_create

GET_SUBSCRIPTION = "google.pubsub.v1.Subscriber.GetSubscription"
#: Where `manage.py receive` listens unless told otherwise.
RECEIVER = "http://127.0.0.1:8080/"
DEMO = "demo"
DEMO_METHODS = (
    "google.pubsub.v1.Publisher.CreateTopic",
    "google.pubsub.v1.Subscriber.CreateSubscription",
    "google.pubsub.v1.Publisher.Publish",
)


def overview_context(request: HttpRequest) -> dict[str, Any]:
    """What the first page shows to its reader, of the chosen project or of all that it may look into."""
    caller = caller_of(request)
    projects = rows_callable(caller, LIST_TIME_SERIES, Project.objects.all())
    subscriptions = rows_callable(caller, GET_SUBSCRIPTION, Subscription.objects.all())
    chosen = chosen_project(request)
    if chosen:
        projects, subscriptions = projects.filter(project_id=chosen), subscriptions.filter(project__project_id=chosen)
    figures = overview(projects, subscriptions)
    return {
        "title": _("Overview"),
        "failing": [
            {
                "url": reverse("admin:deliveries_state", args=[failing.subscription.pk]),
                "name": failing.subscription.name,
                "sentence": words.sentence(failing.status),
                "since": failing.since,
            }
            for failing in figures.failing
        ],
        "figures": _figures(figures),
        "health": _health() if access.is_root(caller) else [],
        "is_empty": not subscriptions.exists(),
        "demo_project": chosen or next(iter(projects.values_list("project_id", flat=True)[:1]), ""),
        "receiver": RECEIVER,
        "public_url": settings.PUBLIC_URL,
    }


def _figures(figures: Overview) -> list[tuple[str, str]]:
    def rate(value: float | None) -> str:
        return "-" if value is None else _("%(rate)s per second") % {"rate": f"{value:.1f}"}

    oldest = "-" if figures.oldest_seconds is None else words.duration_text(figures.oldest_seconds * 1000)
    return [
        (_("Undelivered messages"), "-" if figures.undelivered is None else str(figures.undelivered)),
        (_("Oldest unacked message"), oldest),
        (_("Published"), rate(figures.publish_rate)),
        (_("Pushed"), rate(figures.push_rate)),
        (_("Dead letters in a day"), str(figures.dead_letters)),
    ]


def _health() -> list[tuple[str, str, str]]:
    """The name, the level and the state of each part of the deployment."""
    parts = health()
    silence = words.duration_text((parts.worker_silence_seconds or 0) * 1000)
    workers = _("%(count)d, last sign of life %(silence)s ago") % {"count": parts.workers, "silence": silence}
    return [
        (_("Database"), "good", _("answers")),
        ("Redis", *(("good", _("answers")) if parts.redis_answers else ("bad", _("does not answer")))),
        (_("Push workers"), *(("good", workers) if parts.workers else ("bad", _("none lives")))),
        (_("Metrics pipeline"), *_counting(parts.counting)),
    ]


def _counting(progress: Progress | None) -> tuple[str, str]:
    """The level and the state of the metrics: up to when all is counted, and who counts."""
    if progress is None:
        return ("good", _("nothing has been counted yet")) if settings.JOURNAL else ("warn", _("does not run"))
    text = ngettext(
        "counted up to %(time)s, %(waiting)d segment waiting, %(counter)s",
        "counted up to %(time)s, %(waiting)d segments waiting, %(counter)s",
        progress.waiting,
    ) % {
        "time": progress.time(utcnow()),
        "waiting": progress.waiting,
        "counter": _("by Spark") if progress.counter == Counter.SPARK else _("by the embedded counter"),
    }
    return ("warn", _("%(state)s, which has stopped") % {"state": text}) if progress.is_stopped else ("good", text)


def create_demo(request: HttpRequest) -> HttpResponse:
    """Create a topic with a push subscription to the demo receiver, and publish a message to it."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    project = request.POST.get("project", "")
    topic_name, name = names.topic_name(project, DEMO), names.subscription_name(project, DEMO)
    caller = caller_of(request)
    try:
        for method in DEMO_METHODS:
            authorize(caller, method, {"name": topic_name if "Topic" in method else name, "topic": topic_name})
        topic = topic_create(name=topic_name, topic={}, caller=caller)
        wanted = {"topic": topic_name, "pushConfig": {"pushEndpoint": RECEIVER}}
        row = subscription_create(name=name, subscription=wanted, caller=caller)
        data = base64.b64encode(b"Hello from PushHub").decode()
        message_publish(topic=topic, messages=publish_request_parse({"messages": [{"data": data}]}))
    except PushHubError as error:
        messages.error(request, error.message)
        return HttpResponseRedirect(reverse("admin:index"))
    messages.success(request, _("Created a topic, a subscription and a message. Start the receiver to see it come."))
    return HttpResponseRedirect(reverse("admin:deliveries_state", args=[row.pk]))


admin.site.overview = overview_context  # type: ignore[attr-defined]
