"""The console's first page: what fails, how things stand, and three steps to a first push where nothing is yet."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from deliveries.admin.chart_pages import LIST_TIME_SERIES
from deliveries.inspection import words
from deliveries.inspection.counting import counting_level, counting_text
from deliveries.inspection.overview import Overview, health, overview
from deliveries.metrics.coverage import Counting
from deliveries.observability.probes import Component, Status
from subscriptions.console.base import caller_of
from subscriptions.console.navigation import chosen_project
from subscriptions.iam import access
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription

GET_SUBSCRIPTION = "google.pubsub.v1.Subscriber.GetSubscription"
#: The project of the first steps where there is none yet.
DEMO_PROJECT = "demo"
#: Where `manage.py receive` listens unless told otherwise.
RECEIVER = "http://127.0.0.1:8080/"


def overview_context(request: HttpRequest) -> dict[str, Any]:
    """What the first page shows to its reader, of the chosen project or of all that it may look into."""
    caller = caller_of(request)
    projects = rows_callable(caller, LIST_TIME_SERIES, Project.objects.all())
    subscriptions = rows_callable(caller, GET_SUBSCRIPTION, Subscription.objects.all())
    chosen = chosen_project(request)
    if chosen:
        projects, subscriptions = projects.filter(project_id=chosen), subscriptions.filter(project__project_id=chosen)
    figures = overview(projects, subscriptions)
    project = chosen or next(iter(projects.values_list("project_id", flat=True)[:1]), "")
    return {
        "title": _("Overview"),
        "failing": [
            {
                "url": reverse("admin:deliveries_state", args=[failing.subscription.pk]),
                "name": failing.subscription.name,
                "sentence": words.status_sentence(failing.status),
                "since": failing.since,
            }
            for failing in figures.failing
        ],
        "figures": _figures(figures),
        "health": _health() if access.is_root(caller) else [],
        "is_empty": not subscriptions.exists(),
        "demo_project": project or DEMO_PROJECT,
        # In development, the first use of a project creates it.
        "may_start_demo": bool(project) or (settings.DEVELOPMENT and access.is_root(caller)),
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
    return [
        (_("Database"), "good", _("answers")),
        ("Redis", *(("good", _("answers")) if parts.redis_answers else ("bad", _("does not answer")))),
        (_("Push workers"), *_workers(parts.workers)),
        (_("Metrics pipeline"), *_counting(parts.counting)),
    ]


def _workers(component: Component) -> tuple[str, str]:
    """Return the level and the state of the push workers."""
    figures = component.figures
    match component.status:
        case Status.UNAVAILABLE:
            return "bad", _("none lives")
        case Status.DEGRADED:
            age = words.duration_text(figures["oldest_job_seconds"] * 1000)
            return "warn", _("%(count)d, of which one has had a job for %(age)s") % {
                "count": figures["workers"],
                "age": age,
            }
    silence = words.duration_text(figures["last_sign_of_life_seconds"] * 1000)
    return "good", _("%(count)d, last sign of life %(silence)s ago") % {"count": figures["workers"], "silence": silence}


def _counting(state: Counting | None) -> tuple[str, str]:
    """Return the level and the state of the metrics."""
    return ("warn", _("does not run")) if state is None else (counting_level(state), counting_text(state))


admin.site.overview = overview_context  # type: ignore[attr-defined]
