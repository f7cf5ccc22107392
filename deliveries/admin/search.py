"""The search of the console's head: subscriptions and topics by a part of their names, and a message by its id."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from deliveries.store.statements import LAST_ID
from pushhub.common.decimals import read_decimal
from subscriptions.console.base import SEARCHED_CHARACTERS, caller_of
from subscriptions.console.navigation import chosen_project
from subscriptions.iam.methods import GET_SUBSCRIPTION, GET_TOPIC
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic

#: Rows that are shown of each kind.
SHOWN = 50


def search_page(request: HttpRequest) -> HttpResponse:
    """Show what fits the text and the reader may see. If that is one page, open it."""
    text = request.GET.get("q", "").replace("\0", "").strip()[:SEARCHED_CHARACTERS]  # PostgreSQL takes no NUL
    subscriptions = _fitting(request, Subscription.objects.all(), GET_SUBSCRIPTION, "subscription_id", text)
    topics = _fitting(request, Topic.objects.all(), GET_TOPIC, "topic_id", text)
    rows: list[dict[str, Any]] = []
    message_id = read_decimal(text, most=LAST_ID)
    if message_id:
        address = reverse("admin:deliveries_message_way", args=[message_id])
        rows.append({"kind": _("Message"), "name": text, "url": address})
    rows += _linked(_("Subscription"), subscriptions, "admin:deliveries_state")
    rows += _linked(_("Topic"), topics, "admin:deliveries_topic")
    if len(rows) == 1:
        return HttpResponseRedirect(rows[0]["url"])
    context = {**admin.site.each_context(request), "title": _("Search"), "text": text, "found": rows}
    return TemplateResponse(request, "admin/deliveries/search.html", context)


def _fitting(request: HttpRequest, rows: QuerySet[Any], method: str, column: str, text: str) -> QuerySet[Any]:
    """Return the rows whose name has each of the words, such as `shop orders` or a full name."""
    if not text:
        return rows.none()
    chosen = chosen_project(request)
    fitting = Q(project__project_id=chosen) if chosen else Q()
    words = text.removeprefix("projects/").replace("/subscriptions/", " ").replace("/topics/", " ").split()
    for word in words:
        fitting &= Q(**{f"{column}__icontains": word}) | Q(project__project_id__icontains=word)
    visible = rows_callable(caller_of(request), method, rows)
    return visible.filter(fitting).select_related("project").order_by("project__project_id", column)


def _linked(kind: str, rows: QuerySet[Any], page: str) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": row.name, "url": reverse(page, args=[row.pk])} for row in rows[:SHOWN]]
