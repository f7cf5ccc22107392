"""The console's demo: a topic, a push subscription, a receiver and a message, for those who see PushHub first."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode

import redis
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from deliveries.admin.demoreceiver import arrivals, receiver_url
from deliveries.inspection.texts import redis_text
from deliveries.publish.request import parse_publish_request
from deliveries.publish.service import publish_message
from pushhub.common import names
from pushhub.common.errors import PushHubError
from pushhub.common.outages import outage_or_raise
from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.console.base import caller_of
from subscriptions.console.texts import error_text
from subscriptions.iam import methods
from subscriptions.iam.methods import authorize, may_call
from subscriptions.models import Subscription, Topic
from subscriptions.services.subscriptions import create_subscription, modify_push_config
from subscriptions.services.topics import create_topic, delete_topic

DEMO = "demo"
DEMO_METHODS = (methods.CREATE_TOPIC, "google.pubsub.v1.Subscriber.CreateSubscription", methods.PUBLISH)


def demo_page(request: HttpRequest) -> HttpResponse:
    """Show what the demo's receiver got, or start the demo."""
    project = (request.POST if request.method == "POST" else request.GET).get("project", "")
    caller = caller_of(request)
    if request.method == "POST":
        try:
            _start(project, caller)
        except PushHubError as error:
            messages.error(request, error_text(error))
            return HttpResponseRedirect(reverse("admin:index"))
        messages.success(request, _("Published a message. The receiver shows it as soon as it is pushed."))
        return HttpResponseRedirect(f"{reverse('admin:deliveries_demo')}?{urlencode({'project': project})}")
    name = names.subscription_name(project, DEMO)
    try:
        authorize(caller, methods.PULL, {"subscription": name})
    except PushHubError as error:
        raise PermissionDenied(error.message) from error
    context: dict[str, Any] = {**admin.site.each_context(request), "title": _("Demo"), "project": project, "rows": []}
    try:
        context["rows"] = arrivals(name)
    except redis.RedisError as error:
        context["unknown"] = redis_text(outage_or_raise(error))
    subscription = row_or_none(Subscription.objects.filter(project__project_id=project, subscription_id=DEMO))
    context["subscription"] = (
        subscription if subscription and may_call(caller, methods.GET_SUBSCRIPTION, subscription) else None
    )
    context["may_start"] = _may_start(project, caller)
    return TemplateResponse(request, "admin/deliveries/demo.html", context)


def _may_start(project: str, caller: Principal) -> bool:
    try:
        _authorize_start(project, caller)
    except PushHubError:
        return False
    return True


def _authorize_start(project: str, caller: Principal) -> None:
    topic_name, name = names.topic_name(project, DEMO), names.subscription_name(project, DEMO)
    for method in (*DEMO_METHODS, methods.MODIFY_PUSH_CONFIG):
        resource = topic_name if method.endswith("Topic") else name
        authorize(caller, method, {"name": resource, "topic": topic_name, "subscription": name})


def _start(project: str, caller: Principal) -> None:
    """Create what is missing of the demo, lead its subscription to this process's receiver, and publish a message."""
    topic_name, name = names.topic_name(project, DEMO), names.subscription_name(project, DEMO)
    _authorize_start(project, caller)
    topic = row_or_none(Topic.objects.filter(project__project_id=project, topic_id=DEMO))
    is_new = topic is None
    topic = topic or create_topic(name=topic_name, topic={}, caller=caller)
    config = {"pushConfig": {"pushEndpoint": receiver_url()}}
    try:
        if Subscription.objects.filter(project__project_id=project, subscription_id=DEMO).exists():
            modify_push_config(name=name, request={"subscription": name, **config}, caller=caller)
        else:
            create_subscription(name=name, subscription={"topic": topic_name, **config}, caller=caller)
    except PushHubError:
        if is_new:
            delete_topic(name=topic_name)
        raise
    data = base64.b64encode(b"Hello from PushHub").decode()
    publish_message(topic=topic, messages=parse_publish_request({"messages": [{"data": data}]}))
