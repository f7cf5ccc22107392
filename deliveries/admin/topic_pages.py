"""The list of topics, and a topic's page: its subscriptions and how they fare, its rate, its schema, a publish box."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy
from django.utils.translation import gettext_lazy as _

from deliveries.admin.rated_lists import RatedChangeList, curve, name_link
from deliveries.admin.subscription_list import health_badge, set_conditions, with_gauges
from deliveries.inspection import texts
from deliveries.inspection.notices import topic_notices
from deliveries.inspection.overview import rates
from deliveries.publish.request import parse_publish_request
from deliveries.publish.service import publish_message
from pushhub.common.clock import utcnow
from pushhub.common.errors import PushHubError
from pushhub.common.names import DELETED_SCHEMA
from pushhub.common.principals import Principal
from subscriptions.console.base import ConsoleAdmin, caller_of, check_row
from subscriptions.console.tabs import tabs_of
from subscriptions.console.texts import TextField, TextsField, error_text
from subscriptions.iam.methods import GET_SUBSCRIPTION, GET_TOPIC, PUBLISH, PULL, may_call
from subscriptions.iam.tree import find_resource
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic

GET_SCHEMA = "google.pubsub.v1.SchemaService.GetSchema"
#: Subscriptions that a topic's page shows.
SHOWN = 100


class PublishForm(forms.Form):
    """One message, as text. Its rules are those of the API."""

    text = TextField(label=gettext_lazy("Data"), required=False, widget=forms.Textarea(attrs={"rows": 6}))
    attributes = TextsField(
        label=gettext_lazy("Attributes"), required=False, initial=dict, widget=forms.Textarea({"rows": 2})
    )
    ordering_key = forms.CharField(label=gettext_lazy("Ordering key"), required=False, strip=False)
    #: The fields of the API that errors name, and where they are shown.
    places: ClassVar = {"data": "text", "attributes": "attributes", "orderingKey": "ordering_key"}

    def messages(self) -> Any:
        cleaned = self.cleaned_data
        message = {
            "data": base64.b64encode(cleaned["text"].encode()).decode(),
            "attributes": cleaned["attributes"] or {},
            "orderingKey": cleaned["ordering_key"],
        }
        return parse_publish_request({"messages": [message]})


class TopicChangeList(RatedChangeList):
    """The topics of a page, with the rates of their publishes."""

    event = "publish"
    own_id = "topic_id"


class TopicPages(ConsoleAdmin):
    """What the data plane adds to the control plane's pages of topics."""

    list_display = ("page_link", "subscription_count", "rate", "created_at", "publish_link", "permissions")
    list_display_links = None

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TopicChangeList]:
        return TopicChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Topic]:
        rows: QuerySet[Topic] = super().get_queryset(request).annotate(subscription_total=Count("subscriptions"))
        return rows

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [path("<int:topic_id>/overview/", view(self.overview), name="deliveries_topic"), *super().get_urls()]

    def overview(self, request: HttpRequest, topic_id: int) -> HttpResponse:
        """Who gets the topic's messages and how that goes, how many are published, and a box that publishes another."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = get_object_or_404(Topic.objects.select_related("project"), pk=topic_id)
        check_row(request, row, GET_TOPIC, {"topic": row.name})
        caller = caller_of(request)
        form = PublishForm(request.POST or None)
        if request.method == "POST":
            check_row(request, row, PUBLISH, {"topic": row.name})
            if form.is_valid() and self._publish(request, row, form):
                return HttpResponseRedirect(reverse("admin:deliveries_topic", args=[row.pk]))
        visible = rows_callable(caller, GET_SUBSCRIPTION, Subscription.objects.filter(topic=row))
        shown = list(with_gauges(visible).select_related("project").order_by("subscription_id")[:SHOWN])
        notices = [*set_conditions(shown), *topic_notices(row)]
        now = utcnow()
        published = rates("publish", [row.name], now=now).get(row.name, [])
        pushed = rates("push", [subscription.name for subscription in shown], now=now)
        context = {
            "title": row.name,
            "tabs": tabs_of(row, "overview", caller=caller),
            "row": row,
            "subscriptions": [
                {
                    "url": reverse("admin:deliveries_state", args=[subscription.pk]),
                    "name": subscription.subscription_id
                    if subscription.project_id == row.project_id
                    else subscription.name,
                    "row": subscription,
                    "health": health_badge(subscription),
                    "rate": rate_shown(pushed.get(subscription.name, [])),
                }
                for subscription in shown
            ],
            "more": visible.count() - len(shown),
            "rate": texts.rate_text(published),
            "curve": curve(published),
            "findings": [(notice, None) for notice in notices],
            "schema": _schema_of(caller, row),
            "form": form if may_call(caller, PUBLISH, row) else None,
        }
        return self.render(request, "admin/deliveries/topic.html", **context)

    def _publish(self, request: HttpRequest, row: Topic, form: PublishForm) -> bool:
        """Publish the form's message; return False if it is refused, which the form then says."""
        try:
            [message_id] = publish_message(topic=row, messages=form.messages())
        except PushHubError as error:
            form.add_error(form.places.get(error.field.rpartition(".")[2]), error_text(error))
            return False
        told = _("Published message %(id)s.") % {"id": message_id}
        if rows_callable(caller_of(request), PULL, Subscription.objects.filter(topic=row)).exists():
            way = reverse("admin:deliveries_message_way", args=[message_id])
            told = format_html('{} <a href="{}">{}</a>', told, way, _("Its way"))
        messages.success(request, told)
        return True

    @admin.display(description=_("name"), ordering="topic_id")
    def page_link(self, row: Any) -> str:
        return name_link(row, "admin:deliveries_topic")

    @admin.display(description=_("Subscriptions"), ordering="subscription_total")
    def subscription_count(self, row: Any) -> str:
        return format_html('<span class="number">{}</span>', row.subscription_total)

    @admin.display(description=_("Published"))
    def rate(self, row: Any) -> str:
        """Return its publishes a second, and their curve."""
        return rate_shown(row.rates)


def rate_shown(rates_shown: Sequence[float]) -> str:
    """Return events a second, and their curve."""
    return format_html('<span class="curve">{}{}</span>', texts.rate_text(rates_shown), curve(rates_shown))


def _schema_of(caller: Principal, topic: Topic) -> dict[str, str] | None:
    """Return what the page says of the topic's schema, without `url` if the reader may not see it, or it is deleted."""
    if not topic.schema_settings:
        return None
    name, encoding = topic.schema_settings["schema"], topic.schema_settings["encoding"]
    row: Any = find_resource(name) if name != DELETED_SCHEMA else None
    may_open = row is not None and may_call(caller, GET_SCHEMA, row)
    url = {"url": reverse("admin:subscriptions_schema_change", args=[row.pk])} if may_open else {}
    return {"name": name, "encoding": encoding, **url}


admin.site.extend(Topic, TopicPages)  # type: ignore[attr-defined]
