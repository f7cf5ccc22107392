"""The console's first page: how things stand, what fails, and three steps to a first push where nothing is yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from django.conf import settings
from django.contrib import admin
from django.db.models import Exists, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from deliveries.admin.diagnosis_page import DIAGNOSE
from deliveries.admin.rated_lists import curve
from deliveries.inspection import texts, words
from deliveries.inspection.counting import NOT_COUNTED, counting_level, counting_text
from deliveries.inspection.failing import Failing, failing_subscriptions
from deliveries.inspection.overview import Overview, health, overview
from deliveries.telemetry.export.probes import Component, Status
from deliveries.telemetry.series.coverage import Counting, counting
from pushhub.common.clock import duration_text, minute_text
from pushhub.common.outages import Cause, outage_or_raise
from subscriptions.console.base import caller_of
from subscriptions.console.navigation import chosen_project, short_name
from subscriptions.console.tabs import LIST_TIME_SERIES
from subscriptions.iam import access
from subscriptions.iam.methods import GET_SUBSCRIPTION
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Project, Subscription

#: The project of the first steps where there is none yet.
DEMO_PROJECT = "demo"
#: Where `pushhub receive` listens unless told otherwise.
RECEIVER = "http://127.0.0.1:8080/"


def overview_context(request: HttpRequest) -> dict[str, Any]:
    """What the first page shows to its reader, of the chosen project or of all that it may look into."""
    caller = caller_of(request)
    project = chosen_project(request) or next(iter(_projects(request).values_list("project_id", flat=True)[:1]), "")
    is_empty = not _subscriptions(request).exists()
    return {
        "title": _("Overview"),
        **_standing(request),
        "live": reverse("admin:deliveries_overview"),
        "is_empty": is_empty,
        "sees_nothing": is_empty and not project and not access.is_root(caller),
        "demo_project": project or DEMO_PROJECT,
        # In development, the first use of a project creates it.
        "may_start_demo": bool(project) or (settings.DEVELOPMENT and access.is_root(caller)),
        "receiver": RECEIVER,
        "public_url": settings.PUBLIC_URL,
    }


def overview_live(request: HttpRequest) -> HttpResponse:
    """The part of the first page that changes; the page asks for it again and again."""
    return TemplateResponse(request, "admin/deliveries/standing.html", _standing(request))


def _standing(request: HttpRequest) -> dict[str, Any]:
    """How things stand."""
    caller, state = caller_of(request), counting()
    failing: Sequence[Failing] = ()
    more, unknown, looked = 0, "", ""
    try:
        own = Subscription.objects.order_by().filter(pk=OuterRef("pk"))
        rows = _subscriptions(request).annotate(may_diagnose=Exists(rows_callable(caller, DIAGNOSE, own)))
        failing, more, taken = failing_subscriptions(rows, state)
        looked = minute_text(taken)
    except redis.RedisError as error:
        cause = texts.redis_text(outage_or_raise(error))
        unknown = _("It is not known which endpoints fail: %(cause)s.") % {"cause": cause}
    except LookupError:
        unknown = _("It is not known which endpoints fail: the maintenance worker has not looked lately.")
    figures = overview(_projects(request), state)
    hosts: dict[str, list[Failing]] = {}
    for endpoint in failing:
        hosts.setdefault(endpoint.host, []).append(endpoint)
    return {
        "figures": _figures(figures),
        "as_of": minute_text(figures.taken) if figures.taken else "",
        "health": _health(state) if access.is_root(caller) else [],
        "failing": [(host, [_failing_row(request, each) for each in of_host]) for host, of_host in hosts.items()],
        "failing_count": len(failing) + more,
        "failing_more": more,
        "failing_unknown": unknown,
        "looked": looked,
        "sees_all": access.is_root(caller) and not chosen_project(request),
    }


def _projects(request: HttpRequest) -> QuerySet[Project]:
    projects = rows_callable(caller_of(request), LIST_TIME_SERIES, Project.objects.all())
    chosen = chosen_project(request)
    return projects.filter(project_id=chosen) if chosen else projects


def _subscriptions(request: HttpRequest) -> QuerySet[Subscription]:
    subscriptions = rows_callable(caller_of(request), GET_SUBSCRIPTION, Subscription.objects.all())
    chosen = chosen_project(request)
    return subscriptions.filter(project__project_id=chosen) if chosen else subscriptions


def _failing_row(request: HttpRequest, failing: Failing) -> dict[str, Any]:
    row, lane = failing.subscription, failing.lane
    return {
        "url": reverse("admin:deliveries_state", args=[row.pk]),
        "name": short_name(request, row.project.project_id, row.subscription_id),
        "why": words.failing_text(failing.condition, lane, failing.last_result),
        "share": f"{lane.failures} / {lane.results}" if lane.results else "-",
        "undelivered": failing.undelivered,
        "since": failing.since,
        "next": duration_text(failing.next_attempt_ms) if failing.next_attempt_ms else "-",
        # The reader of the query says whether it may.
        "diagnose": reverse("admin:deliveries_diagnose", args=[row.pk]) if row.may_diagnose else "",  # type: ignore[attr-defined]
    }


def _figures(figures: Overview) -> list[tuple[str, str, str]]:
    """The label, the text and the curve of each figure."""

    def rate(label: str, rates: Sequence[float]) -> tuple[str, str, str]:
        return label, texts.rate_text(rates), curve(rates)

    oldest = duration_text((figures.oldest_seconds or 0) * 1000) if figures.undelivered else "-"
    return [
        (_("Undelivered messages"), "-" if figures.undelivered is None else str(figures.undelivered), ""),
        (_("Oldest unacked message"), oldest, ""),
        rate(_("Published"), figures.publish_rates),
        rate(_("Pushed"), figures.push_rates),
        (_("Dead letters in a day"), str(figures.dead_letters), ""),
    ]


def _health(state: Counting) -> list[tuple[str, str, str]]:
    """The name, the level and the state of each part of the deployment."""
    parts = health(state)
    return [
        (_("Database"), *_standing_of(parts.database_cause)),
        ("Redis", *_standing_of(parts.redis_cause, texts.redis_text)),
        (_("Push workers"), *(_workers(parts.workers) if parts.workers is not None else ("", _("not known")))),
        (_("Metrics pipeline"), *_counting(parts.counting)),
    ]


def _standing_of(cause: Cause | None, text: Callable[[Cause], str] = _) -> tuple[str, str]:
    """Return the level and the state of the database or Redis."""
    return ("good", _("answers")) if cause is None else ("bad", text(cause))


def _workers(component: Component) -> tuple[str, str]:
    """Return the level and the state of the push workers."""
    figures = component.figures
    match component.status:
        case Status.UNAVAILABLE:
            return "bad", _("none lives")
        case Status.DEGRADED:
            age = duration_text(figures["oldest_job_seconds"] * 1000)
            return "warn", _("%(count)d, of which one has had a job for %(age)s") % {
                "count": figures["workers"],
                "age": age,
            }
    silence = duration_text(figures["last_sign_of_life_seconds"] * 1000)
    return "good", _("%(count)d, last sign of life %(silence)s ago") % {"count": figures["workers"], "silence": silence}


def _counting(state: Counting | None) -> tuple[str, str]:
    """Return the level and the state of the metrics."""
    return ("warn", str(NOT_COUNTED)) if state is None else (counting_level(state), counting_text(state))


admin.site.overview = overview_context  # type: ignore[attr-defined]
