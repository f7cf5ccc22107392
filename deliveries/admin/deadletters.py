"""The console's pages of dead letters: by subscription, those of one subscription, and one with its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.core.exceptions import PermissionDenied
from django.db.models import Exists, OuterRef
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from deliveries.admin.message_pages import content_shown, delivered_shown
from deliveries.admin.readonly import ReadOnlyAdmin
from deliveries.deadletters import jobs
from deliveries.deadletters.listing import Summary, summaries, unsettled
from deliveries.deadletters.moving import METHODS, Action, check_redrivable, letter_original, move_letters
from deliveries.inspection import texts
from deliveries.inspection.contents import sees_originals, topic_of, wire_of
from deliveries.inspection.texts import MAX_COUNTED
from deliveries.models import DeadLetter, DeadLetterJob, Message
from deliveries.rules.ids import publish_time
from deliveries.rules.payload import wire_message
from deliveries.store.statements import LAST_ID
from pushhub.common import names
from pushhub.common.clock import time_text
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import PushHubError
from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.console import navigation
from subscriptions.console.base import caller_of, check_row
from subscriptions.console.navigation import short_name
from subscriptions.console.tabs import LIST_DEAD_LETTERS as LIST
from subscriptions.console.tabs import tabs_of
from subscriptions.console.texts import error_text
from subscriptions.iam import access
from subscriptions.iam.methods import may_call
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic

GET = "pushhub.v1.DeadLetters.GetDeadLetter"
#: Subscriptions, and dead letters, on one page.
PER_PAGE = 50
#: Reasons that the list of subscriptions tells of each.
REASONS_SHOWN = 3


#: What a form may ask for.
VERBS = frozenset({"redrive", "discard", "redrive-all", "discard-all"})
#: The label of the button that destroys something, and what is asked before.
QUESTIONS = {
    "discard": (
        gettext_lazy("Discard"),
        gettext_lazy(
            "Discarding the chosen dead letters (%(count)s) deletes them for good. Nobody delivers them again."
        ),
    ),
    "discard-all": (
        gettext_lazy("Discard all"),
        gettext_lazy("Discarding all dead letters (%(count)s) deletes them for good. Nobody delivers them again."),
    ),
}


@admin.register(DeadLetter)
class DeadLetterAdmin(ReadOnlyAdmin):
    """Dead letters. Each page asks the policies about the subscription that they come from."""

    methods = {"view": LIST}
    held_on = "subscription"
    list_display_links = None

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="deliveries_deadletter_changelist"),
            path("of/<int:subscription_id>/", view(self.of_subscription), name="deliveries_deadletters_of"),
            path("act/<int:subscription_id>/", view(self.act), name="deliveries_deadletters_act"),
            path("job/<int:subscription_id>/", view(self.job), name="deliveries_deadletters_job"),
            path("stop/<int:subscription_id>/", view(self.stop), name="deliveries_deadletters_stop"),
            path("<int:object_id>/change/", view(self.letter), name="deliveries_deadletter_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The subscriptions that have dead letters, with their number, age and reasons."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if set(request.GET) - {"page"}:
            raise DisallowedModelAdminLookup
        visible = _visible_subscriptions(request)
        listed = summaries(visible)
        start = (read_decimal(request.GET.get("page", ""), most=99_999) or 0) * PER_PAGE
        shown = listed[start : start + PER_PAGE]
        return self.render(
            request,
            "admin/deliveries/dead_letters.html",
            title=capfirst(self.opts.verbose_name_plural),
            cl=True,  # for the breadcrumbs: this page stands for the list of the model
            rows=_rows_shown(request, shown),
            count=len(listed),
            sees_all=visible is None,
            next_page=start // PER_PAGE + 1 if len(listed) > start + PER_PAGE else None,
        )

    def of_subscription(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """The dead letters of one subscription, the newest first, and what the reader may do with them."""
        source = self._source(request, subscription_id)
        asked = read_decimal(request.GET.get("before", ""), most=LAST_ID)
        before_id = LAST_ID if asked is None else asked
        rows = list(unsettled(source).filter(message_id__lt=before_id).order_by("-message_id")[: PER_PAGE + 1])
        return self.render(
            request,
            "admin/deliveries/dead_letters_of.html",
            title=source.name,
            source=source,
            letters=[_letter_shown(letter) for letter in rows[:PER_PAGE]],
            older=rows[PER_PAGE - 1].message_id if len(rows) > PER_PAGE else None,
            is_newest=before_id == LAST_ID,
            job=_job_shown(DeadLetterJob.objects.filter(subscription=source).order_by("-pk").first()),
            may_open=may_call(caller_of(request), GET, source),
            tabs=tabs_of(source, "dead_letters", caller=caller_of(request)),
            default_rate=jobs.DEFAULT_RATE,
            max_rate=jobs.MAX_RATE,
            **_offered(caller_of(request), source),
        )

    def job(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """How far the latest order is, as JSON; the page asks for it while one runs."""
        source = self._source(request, subscription_id)
        job = DeadLetterJob.objects.filter(subscription=source).order_by("-pk").first()
        shown = _job_shown(job) or {"text": "", "level": ""}
        response = JsonResponse({"sentence": shown["text"], "level": shown["level"]})
        response.headers["Cache-Control"] = "no-store"
        return response

    def letter(self, request: HttpRequest, object_id: int) -> HttpResponse:
        """A dead letter with its content."""
        if object_id > LAST_ID or not self.has_view_permission(request):
            raise Http404
        letter = row_or_none(self.get_queryset(request).filter(pk=object_id))
        if letter is None:
            raise Http404
        source = self._source(request, letter.subscription_id)
        check_row(request, source, GET, {"subscription": source.name})
        payload = row_or_none(Message.objects.filter(pk=object_id))
        topic = topic_of(payload) if payload is not None else None
        is_settled = not unsettled(source).filter(pk=object_id).exists()
        return self.render(
            request,
            "admin/deliveries/dead_letter.html",
            title=str(object_id),
            source=source,
            letter=_letter_shown(letter),
            topic=payload and (topic or names.DELETED_TOPIC),
            ordering_key=payload.ordering_key if payload is not None else "",
            content=payload and _content_shown(caller_of(request), source, letter, payload, topic),
            is_settled=is_settled,
            **({} if is_settled else _offered(caller_of(request), source)),
        )

    @method_decorator(require_POST)
    def act(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """Redrive or discard the chosen dead letters at once, or order it for them or for all at a rate."""
        source = self._source(request, subscription_id)
        verb = request.POST.get("do", "")
        back = HttpResponseRedirect(reverse("admin:deliveries_deadletters_of", args=[source.pk]))
        if verb not in VERBS:
            return back
        action, caller = Action(verb.removesuffix("-all")), caller_of(request)
        if not may_call(caller, METHODS[action], source):
            raise PermissionDenied
        read = (read_decimal(text, most=LAST_ID) for text in request.POST.getlist("letter"))
        ids = None if verb.endswith("-all") else [number for number in read if number is not None]
        sent = request.POST.get("rate")
        rate = None if sent is None else read_decimal(sent, most=jobs.MAX_RATE) or 0
        if ids == []:
            messages.error(request, _("Choose at least one dead letter."))
        elif rate == 0:
            messages.error(
                request, _("The rate must be between 1 and %(max)d messages a second.") % {"max": jobs.MAX_RATE}
            )
        elif verb in QUESTIONS and "confirmed" not in request.POST:
            return self._confirmation(request, source, verb, ids)
        else:
            try:
                messages.success(request, _carry_out(source, action, ids, rate=rate, caller=caller))
            except PushHubError as error:
                messages.error(request, error_text(error))
        return back

    @method_decorator(require_POST)
    def stop(self, request: HttpRequest, subscription_id: int) -> HttpResponse:
        """Stop the order that is under way."""
        source = self._source(request, subscription_id)
        job = jobs.running_job(source)
        if job is not None:
            if not may_call(caller_of(request), METHODS[Action(job.action)], source):
                raise PermissionDenied
            jobs.stop_job(source)
            messages.success(request, _("Stopped. The dead letters that are left stay here."))
        return HttpResponseRedirect(reverse("admin:deliveries_deadletters_of", args=[source.pk]))

    def _confirmation(
        self, request: HttpRequest, source: Subscription, verb: str, ids: Sequence[int] | None
    ) -> HttpResponse:
        count = unsettled(source)[: MAX_COUNTED + 1].count() if ids is None else len(ids)
        label, question = QUESTIONS[verb]
        asked = str(question) % {"count": texts.count_text(count)}
        back = reverse("admin:deliveries_deadletters_of", args=[source.pk])
        return self.confirmation(request, asked, title=source.name, label=label, back=back)

    def _source(self, request: HttpRequest, subscription_id: int) -> Subscription:
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = Subscription.objects.select_related("project", "topic__project", "dead_letter_topic__project")
        source = get_object_or_404(rows, pk=subscription_id)
        check_row(request, source, LIST, {"subscription": source.name})
        return source


def _visible_subscriptions(request: HttpRequest) -> Any:
    """Return the subscriptions whose dead letters the reader may see, or None for those of everybody."""
    caller, project = caller_of(request), navigation.chosen_project(request)
    if access.is_root(caller) and not project:
        return None
    rows = rows_callable(caller, LIST, Subscription.objects.order_by())
    return rows.filter(project__project_id=project) if project else rows


def _rows_shown(request: HttpRequest, listed: Sequence[Summary]) -> list[dict[str, Any]]:
    """The texts of each subscription's line: two queries, however many there are."""
    ids = [summary.subscription_id for summary in listed]
    received = Exists(Subscription.objects.filter(topic=OuterRef("dead_letter_topic"), detached=False))
    subscriptions = Subscription.objects.select_related("project", "dead_letter_topic__project")
    rows = subscriptions.annotate(is_received=received).in_bulk(ids)
    running = {job.subscription_id: job for job in DeadLetterJob.objects.filter(subscription__in=ids, finished_at=None)}
    shown = []
    for summary in listed:
        source: Any = rows.get(summary.subscription_id)
        if source is None:  # it was deleted, and the sweep has not come by yet
            continue
        topic = source.dead_letter_topic
        shown.append(
            {
                "name": short_name(request, source.project.project_id, source.subscription_id),
                "full_name": source.name,
                "url": reverse("admin:deliveries_deadletters_of", args=[source.pk]),
                "count": summary.count,
                "since": time_text(publish_time(summary.first_id)),
                "latest": time_text(publish_time(summary.last_id)),
                "attempts": summary.max_attempts,
                "reasons": [(texts.nack_text(result), count) for result, count in summary.reasons[:REASONS_SHOWN]],
                "topic": topic and short_name(request, topic.project.project_id, topic.topic_id),
                "is_received": source.is_received,
                "job": _job_shown(running.get(summary.subscription_id)),
            }
        )
    return shown


def _letter_shown(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": str(letter.message_id),
        "source_id": letter.source_id,
        "at": time_text(publish_time(letter.message_id)),
        "published": time_text(publish_time(letter.source_id)),
        "attempts": letter.attempts,
        "reason": texts.nack_text(letter.result),
    }


def _job_shown(job: DeadLetterJob | None) -> dict[str, Any] | None:
    if job is None:
        return None
    words_of = {"done": job.done, "total": job.total, "rate": job.rate, "reason": job.failure}
    is_redrive = job.action == Action.REDRIVE
    if job.finished_at is None:
        text = (
            _("Redriving: %(done)d of %(total)d, at most %(rate)d a second.")
            if is_redrive
            else _("Discarding: %(done)d of %(total)d, at most %(rate)d a second.")
        )
    elif job.failure == jobs.STOPPED:
        text = _("Stopped after %(done)d of %(total)d.")
    elif job.failure:
        text = _("Ended after %(done)d of %(total)d: %(reason)s")
    else:
        text = _done_text(job.action, job.done)
    text %= words_of
    level = "bad" if job.failure not in ("", jobs.STOPPED) else "" if job.finished_at is None else "good"
    if (since := jobs.stalled_since(job)) is not None:
        stalled = _("It has not gone on since %(time)s: is a maintenance worker running?") % {"time": time_text(since)}
        text, level = f"{text} {stalled}", "warn"
    return {
        "text": text,
        "is_running": job.finished_at is None,
        "level": level,
        "at": time_text(job.finished_at or job.created_at),
    }


def _offered(caller: Principal, source: Subscription) -> dict[str, Any]:
    """What the buttons of a page are decided by."""
    may_redrive = may_call(caller, METHODS[Action.REDRIVE], source)
    try:
        check_redrivable(source)
        obstacle = ""
    except PushHubError:
        obstacle = _("The subscription is detached or its topic is deleted, so it cannot take dead letters back.")
    return {
        "may_redrive": may_redrive and not obstacle,
        "may_discard": may_call(caller, METHODS[Action.DISCARD], source),
        "obstacle": obstacle,
    }


def _carry_out(
    source: Subscription, action: Action, ids: Sequence[int] | None, *, rate: int | None, caller: Principal
) -> str:
    """Move the dead letters, or order it for all, or at a rate; return what was done in words."""
    if ids is None or rate is not None:
        rate = jobs.DEFAULT_RATE if rate is None else rate
        job = jobs.begin_job(source, action=action, rate=rate, caller=caller, chosen_ids=ids)
        if action == Action.REDRIVE:
            text = ngettext(
                "%(count)d dead letter will be redriven, at most %(rate)d a second.",
                "%(count)d dead letters will be redriven, at most %(rate)d a second.",
                job.total,
            )
        else:
            text = ngettext(
                "%(count)d dead letter will be discarded, at most %(rate)d a second.",
                "%(count)d dead letters will be discarded, at most %(rate)d a second.",
                job.total,
            )
        return text % {"count": job.total, "rate": job.rate}
    return _done_text(action, move_letters(source, ids, action=action, caller=caller))


def _done_text(action: str, count: int) -> str:
    if action == Action.REDRIVE:
        return ngettext("Redrove %(count)d dead letter.", "Redrove %(count)d dead letters.", count) % {"count": count}
    return ngettext("Discarded %(count)d dead letter.", "Discarded %(count)d dead letters.", count) % {"count": count}


def _content_shown(
    caller: Principal, source: Subscription, letter: DeadLetter, payload: Message, topic: Topic | None
) -> dict[str, Any]:
    """Return the dead letter or, for a reader who may not see it, what its subscription would have got."""
    if sees_originals(caller, source.topic, [source]) or sees_originals(caller, topic, []):
        return content_shown(wire_of(payload))
    original = letter_original(letter, payload)
    message = wire_message(letter.source_id, original.data, original.attributes, original.ordering_key)
    return delivered_shown(message, source)
