"""A subscription's page: why its messages wait, live, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.template.loader import render_to_string
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from deliveries.admin.diagnosis_page import DIAGNOSE, diagnosis_context
from deliveries.admin.readonly import ReadOnlyAdmin, publish_time_shown
from deliveries.backlog.lanes import configure_lanes
from deliveries.inspection import texts, words
from deliveries.inspection.conditions import Condition
from deliveries.inspection.counting import counting_text
from deliveries.inspection.notices import Finding
from deliveries.inspection.probe import send_probe
from deliveries.inspection.status import SubscriptionStatus, count_undelivered, subscription_status
from deliveries.models import Delivery
from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot
from deliveries.rules.outcome import ACK_STATUSES
from deliveries.store import lanerows
from deliveries.telemetry.series import curves
from deliveries.telemetry.series.coverage import Counting, counting
from deliveries.telemetry.series.series import MINUTE
from pushhub.common.clock import duration_text, utcnow
from pushhub.common.errors import PushHubError
from pushhub.common.names import snapshot_name
from pushhub.common.principals import Principal
from pushhub.common.replica import told_seconds
from subscriptions.console.base import caller_of, check_row
from subscriptions.console.tabs import tabs_of
from subscriptions.console.texts import error_text
from subscriptions.iam.methods import GET_SUBSCRIPTION, MODIFY_PUSH_CONFIG, PULL, SEEK, authorize, may_call
from subscriptions.iam.visible import rows_held
from subscriptions.models import Snapshot, Subscription
from subscriptions.services.subscriptions import (
    delete_subscription,
    detach_subscription,
    pause_subscription,
    resume_subscription,
)

CREATE_SNAPSHOT = "google.pubsub.v1.Subscriber.CreateSnapshot"
DETACH = "google.pubsub.v1.Publisher.DetachSubscription"
DELETE = "google.pubsub.v1.Subscriber.DeleteSubscription"
OLDEST_SHOWN = 50
#: What the percentiles of the page are about: the last minutes that are counted.
RECENT = timedelta(minutes=10)
#: Snapshots that a seek offers.
SNAPSHOTS_OFFERED = 50

#: Findings whose remedy is in the subscription's settings.
CONFIGURED = frozenset(
    {
        *(Condition.LIMITED, Condition.EXPIRING),
        *(Condition.NO_DEAD_LETTER_TOPIC, Condition.DEAD_LETTERS_DENIED, Condition.DEAD_LETTERS_BANNED),
    }
)


@dataclass(frozen=True, slots=True)
class Action:
    """A button of the page: it calls `run`, which returns what to tell."""

    label: Promise
    method: str
    run: Callable[[HttpRequest, Subscription], str]
    for_push: bool = True
    #: Asked before something is destroyed; it may hold the number of undelivered messages.
    question: Promise | None = None


def _test(request: HttpRequest, row: Subscription) -> str:
    result = send_probe(row)
    words_of = {"result": texts.result_text(result.reason or str(result.status)), "ms": round(result.latency_ms)}
    if result.status in ACK_STATUSES and not result.reason:
        return _("The endpoint acknowledged the test message with %(result)s after %(ms)d ms.") % words_of
    return _("The test message failed with %(result)s after %(ms)d ms.") % words_of


def _try_now(request: HttpRequest, row: Subscription) -> str:
    configure_lanes(row.pk, action="anew")
    return _("The push backoff and the countdowns of retries are over. Messages go out a few at a time at first.")


def _pause(request: HttpRequest, row: Subscription) -> str:
    pause_subscription(name=row.name, caller=caller_of(request))
    return _("Paused. Messages wait, and the push configuration is kept.")


def _resume(request: HttpRequest, row: Subscription) -> str:
    resume_subscription(name=row.name, caller=caller_of(request))
    return _("Resumed with the push configuration from before the pause.")


def _seek(request: HttpRequest, row: Subscription) -> str:
    moment, snapshot = request.POST.get("time", ""), request.POST.get("snapshot", "")
    if len(moment) == len("2026-11-22T05:32"):  # a browser leaves out seconds that are zero
        moment += ":00"
    target = ({"snapshot": snapshot} if snapshot else {}) | ({"time": f"{moment}Z"} if moment else {})
    authorize(caller_of(request), SEEK, {"subscription": row.name, "snapshot": snapshot})
    seek_subscription(name=row.name, request={"subscription": row.name, **target})
    sought = {"target": snapshot or f"{moment} UTC"}
    return _("The backlog is now that of %(target)s, as far as messages were retained.") % sought


def _snapshot(request: HttpRequest, row: Subscription) -> str:
    name = snapshot_name(row.project.project_id, request.POST.get("snapshot_id", ""))
    caller = caller_of(request)
    authorize(caller, CREATE_SNAPSHOT, {"name": name, "subscription": row.name})
    snapshot = create_snapshot(name=name, request={"name": name, "subscription": row.name}, caller=caller)
    return _("Created the snapshot %(name)s.") % {"name": snapshot.name}


def _detach(request: HttpRequest, row: Subscription) -> str:
    detach_subscription(name=row.name)
    return _("Detached.")


def _delete(request: HttpRequest, row: Subscription) -> str:
    delete_subscription(name=row.name)
    return _("Deleted %(name)s.") % {"name": row.name}


ACTIONS = {
    "test": Action(gettext_lazy("Send a test message"), MODIFY_PUSH_CONFIG, _test),
    "try-now": Action(gettext_lazy("Try now"), MODIFY_PUSH_CONFIG, _try_now),
    "pause": Action(gettext_lazy("Pause"), MODIFY_PUSH_CONFIG, _pause),
    "resume": Action(gettext_lazy("Resume"), MODIFY_PUSH_CONFIG, _resume),
    "seek": Action(
        gettext_lazy("Seek"),
        SEEK,
        _seek,
        for_push=False,
        question=gettext_lazy("Seeking replaces the backlog. Undelivered messages: %(count)s."),
    ),
    "snapshot": Action(gettext_lazy("Create a snapshot"), CREATE_SNAPSHOT, _snapshot, for_push=False),
    "detach": Action(
        gettext_lazy("Detach"),
        DETACH,
        _detach,
        for_push=False,
        question=gettext_lazy("Detaching drops all undelivered messages (%(count)s) and cannot be undone."),
    ),
    "delete": Action(
        gettext_lazy("Delete"),
        DELETE,
        _delete,
        for_push=False,
        question=gettext_lazy("Deleting drops all undelivered messages (%(count)s) and cannot be undone."),
    ),
}


class SubscriptionPages(ReadOnlyAdmin):
    """The views, below the addresses of deliveries. Each asks the policies about the one subscription it is about."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("state/<int:subscription_id>/", view(self.overview), name="deliveries_state"),
            path("state/<int:subscription_id>/live/", view(self.live), name="deliveries_live"),
            path("act/<int:subscription_id>/diagnose/", view(self.diagnose), name="deliveries_diagnose"),
            path("waiting/<int:subscription_id>/", view(self.waiting), name="deliveries_waiting"),
            *(
                path(f"act/<int:subscription_id>/{name}/", view(self.acting(name)), name=f"deliveries_{name}")
                for name in ACTIONS
            ),
            *super().get_urls(),
        ]

    def overview(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """Why messages wait, the figures behind it, and the actions that the reader may take."""
        row = self._row(request, subscription_id)
        status = subscription_status(row)
        caller = caller_of(request)
        context = {
            "shown": shown(caller, row, status),
            "live": reverse("admin:deliveries_live", args=[row.pk]),
            "actions": [
                *([("diagnose", gettext_lazy("Diagnose"))] if may_call(caller, DIAGNOSE, row) else []),
                *((name, action.label) for name, action in offered(caller, row).items() if not action.question),
            ],
            "snapshot_action": may(caller, ACTIONS["snapshot"], row) and not row.detached and row.topic is not None,
            "seek_action": may(caller, ACTIONS["seek"], row) and not row.detached,
            "detach_action": may(caller, ACTIONS["detach"], row) and not row.detached,
            "delete_action": may(caller, ACTIONS["delete"], row),
            "snapshots": _snapshots_of(row, caller),
            "tabs": tabs_of(row, "overview", caller=caller),
        }
        return self._render(request, "admin/deliveries/state.html", row, **context)

    def live(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """The texts of the overview as JSON; the page asks for them every two seconds."""
        row = self._row(request, subscription_id)
        response = JsonResponse(shown(caller_of(request), row, subscription_status(row)))
        response.headers["Cache-Control"] = "no-store"
        return response

    def waiting(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """The oldest deliveries that wait."""
        row = self._row(request, subscription_id)
        deliveries = _oldest_deliveries(row)
        oldest = [
            (delivery, publish_time_shown(delivery.message_id), texts.result_text(delivery.last_result))
            for delivery in deliveries
        ]
        tabs = tabs_of(row, "messages", caller=caller_of(request))
        context = {"oldest": oldest, "tabs": tabs, "may_open": may_call(caller_of(request), PULL, row)}
        return self._render(request, "admin/deliveries/waiting.html", row, **context)

    @method_decorator(require_POST)
    def diagnose(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """Check each step of a push and show the result."""
        row = self._row(request, subscription_id)
        if not may_call(caller_of(request), DIAGNOSE, row):
            raise PermissionDenied
        try:
            context = diagnosis_context(request, row)
        except PushHubError as error:
            messages.error(request, error_text(error))
            return HttpResponseRedirect(reverse("admin:deliveries_state", args=[subscription_id]))
        context["tabs"] = tabs_of(row, "overview", caller=caller_of(request))
        return self._render(request, "admin/deliveries/diagnosis.html", row, **context)

    def acting(self, name: str) -> Callable[[HttpRequest, int], HttpResponse]:
        """Return the view that carries out an action, after a confirmation where it destroys something."""

        @require_POST
        def act(request: HttpRequest, subscription_id: int) -> HttpResponse:
            row = self._row(request, subscription_id)
            action = ACTIONS[name]
            if not may(caller_of(request), action, row):
                raise PermissionDenied
            if action.question is not None and "confirmed" not in request.POST:
                question = str(action.question) % {"count": texts.count_text(count_undelivered(row))}
                back = reverse("admin:deliveries_state", args=[row.pk])
                shared = {"title": row.name, "opts": Subscription._meta}
                return self.confirmation(request, question, label=action.label, back=back, **shared)
            try:
                messages.success(request, action.run(request, row))
            except PushHubError as error:
                messages.error(request, error_text(error))
            if not Subscription.objects.filter(pk=subscription_id).exists():
                return HttpResponseRedirect(reverse("admin:subscriptions_subscription_changelist"))
            return HttpResponseRedirect(reverse("admin:deliveries_state", args=[subscription_id]))

        return act

    def _row(self, request: HttpRequest, subscription_id: int) -> Subscription:
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = get_object_or_404(Subscription.objects.select_related("project", "topic__project"), pk=subscription_id)
        check_row(request, row, GET_SUBSCRIPTION, {"subscription": row.name})
        return row

    def _render(self, request: HttpRequest, template: str, row: Subscription, **context: Any) -> HttpResponse:
        return self.render(request, template, title=row.name, opts=Subscription._meta, row=row, **context)


def may(caller: Principal, action: Action, row: Subscription) -> bool:
    """Return whether the policies let the caller take the action. The name of a new snapshot is not known yet."""
    if action.method != CREATE_SNAPSHOT:
        return may_call(caller, action.method, row)
    new_snapshot = snapshot_name(row.project.project_id, "any-snapshot")
    try:
        authorize(caller, action.method, {"subscription": row.name, "name": new_snapshot})
    except PushHubError:
        return False
    return True


def offered(caller: Principal, row: Subscription) -> dict[str, Action]:
    """The actions that make sense for a subscription and that the caller may take, by name."""
    out_of_place = {"resume"} if not row.paused else {"pause", "try-now", "test"}
    return {
        name: action
        for name, action in ACTIONS.items()
        if name not in out_of_place
        and (row.push_endpoint or not action.for_push)
        and not row.detached
        and name != "snapshot"
        and may(caller, action, row)
    }


def shown(caller: Principal, row: Subscription, status: SubscriptionStatus) -> dict[str, Any]:
    """The texts that the page shows, in the reader's language."""
    figures = {
        "undelivered": texts.count_text(status.undelivered),
        "oldest": duration_text(status.oldest_age_seconds * 1000) if status.undelivered else "-",
    }
    state = counting()
    if row.push_endpoint:
        figures |= _flow_figures(status) | _recent_figures(row, state)
    figures["counting"] = counting_text(state)
    return {
        "sentence": words.status_sentence(status),
        "level": status.worst_level,
        "figures": figures,
        "parts": {
            "age": render_to_string("admin/subscriptions/replica_age.html", {"seconds": told_seconds()}),
            "findings": _findings_shown(caller, row, status),
        },
    }


def _findings_shown(caller: Principal, row: Subscription, status: SubscriptionStatus) -> str:
    """Return what is so of the subscription as HTML, each finding with what to do and the page that it is about."""
    findings = words.findings_of(status)
    links = [_page_of(caller, finding, row) for finding in findings]
    if status.outcomes is not None and status.outcomes.dead_letters_waiting:
        links[0] = (reverse("admin:deliveries_deadletters_of", args=[row.pk]), _("Dead letters"))
    return render_to_string("admin/deliveries/findings.html", {"findings": zip(findings, links, strict=True)})


def _page_of(caller: Principal, finding: Finding, row: Subscription) -> tuple[str, str] | None:
    """Return the address of the page that a finding is about, and what to call it."""
    if finding.message_id is not None and may_call(caller, PULL, row):
        return reverse("admin:deliveries_message_way", args=[finding.message_id]), str(finding.message_id)
    if finding.condition in CONFIGURED:
        return reverse("admin:subscriptions_subscription_change", args=[row.pk]), _("Configuration")
    return None


def _flow_figures(status: SubscriptionStatus) -> dict[str, str]:
    """Return the figures of the flow control, each "-" where Redis does not tell."""
    lanes = [lane for lane in status.lanes if not lane.is_elsewhere]
    if not lanes:
        return dict.fromkeys(("outstanding", "window", "acked", "backoff", "retrying"), "-")
    results = sum(lane.results for lane in lanes)
    failures = sum(lane.failures for lane in lanes)
    return {
        "outstanding": str(sum(lane.outstanding for lane in lanes)),
        "window": str(sum(lane.window for lane in lanes)),
        "acked": f"{100 * (1 - failures / results):.1f} %" if results else "-",
        "backoff": words.backoff_text(max(lanes, key=attrgetter("delay_ms", "is_backing_off"))),
        "retrying": str(sum(lane.retrying for lane in lanes)),
    }


def _recent_figures(row: Subscription, state: Counting) -> dict[str, str]:
    """Return the latency percentiles and the response classes of the last minutes that are counted."""
    end = (state.counted_to or utcnow()).replace(second=0, microsecond=0) + MINUTE
    span = curves.Span(row.project.project_id, row.subscription_id, end - RECENT, end, RECENT)
    recent = curves.recent(span)
    total = sum(recent.pushes.values())
    figures = {f"p{100 * q:.0f}": "-" if ms is None else duration_text(ms) for q, ms in recent.latencies_ms.items()}
    responses = [f"{name} {100 * count / total:.1f} %" for name, count in recent.pushes.items()]
    return {**figures, "responses": ", ".join(responses) or "-"}


def _oldest_deliveries(row: Subscription) -> list[Delivery]:
    """Return the oldest deliveries, read region by region as the index has them: else the whole backlog is sorted."""
    rows = Delivery.objects.filter(subscription=row).order_by("message_id")
    regions = lanerows.lanes_waiting(row.pk)
    oldest = [delivery for region in regions for delivery in rows.filter(region=region)[:OLDEST_SHOWN]]
    return sorted(oldest, key=lambda delivery: delivery.message_id)[:OLDEST_SHOWN]


def _snapshots_of(row: Subscription, caller: Principal) -> list[str]:
    """Return the names of the newest snapshots to which `caller` may seek the subscription."""
    rows = Snapshot.objects.filter(project=row.project_id, topic_pk=row.topic_id or 0).select_related("project")
    rows = rows_held(caller, "pubsub.snapshots.seek", rows)
    return [snapshot.name for snapshot in rows.order_by("-pk")[:SNAPSHOTS_OFFERED]]
