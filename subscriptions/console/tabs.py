"""The tabs of a subscription's and of a topic's pages, some of which are pages of the data plane."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from pushhub.common.principals import Principal
from subscriptions.iam.methods import GET_POLICY, may_call
from subscriptions.models import Subscription, Topic

LIST_LOG = "google.logging.v2.LoggingServiceV2.ListLogEntries"
LIST_TIME_SERIES = "google.monitoring.v3.MetricService.ListTimeSeries"
LIST_DEAD_LETTERS = "pushhub.v1.DeadLetters.ListDeadLetters"

SUBSCRIPTION = {
    "overview": (_("Overview"), "admin:deliveries_state"),
    "messages": (_("Messages"), "admin:deliveries_waiting"),
    "dead_letters": (_("Dead letters"), "admin:deliveries_deadletters_of"),
    "metrics": (_("Metrics"), "admin:deliveries_charts"),
    "configuration": (_("Configuration"), "admin:subscriptions_subscription_change"),
}
TOPIC = {
    "overview": (_("Overview"), "admin:deliveries_topic"),
    "configuration": (_("Configuration"), "admin:subscriptions_topic_change"),
}


def tabs_of(row: Subscription | Topic, current: str, *, caller: Principal) -> list[dict[str, Any]]:
    """Return the label, the address and whether it is the current page, for each tab that `caller` may open."""
    pages = SUBSCRIPTION if isinstance(row, Subscription) else TOPIC
    closed = {
        *(["dead_letters"] if not may_call(caller, LIST_DEAD_LETTERS, row) else []),
        *(["metrics"] if not may_call(caller, LIST_TIME_SERIES, row.project) else []),
    }
    tabs = [(name, label, reverse(page, args=[row.pk])) for name, (label, page) in pages.items() if name not in closed]
    if may_call(caller, GET_POLICY, row):
        tabs.append(("permissions", _("Permissions"), reverse("admin:subscriptions_policy_of", args=[row.name])))
    if may_call(caller, LIST_LOG, row.project):
        log = reverse("admin:subscriptions_auditentry_changelist")
        tabs.append(("history", _("History"), f"{log}?{urlencode({'resource': row.name})}"))
    return [{"label": label, "url": url, "current": name == current} for name, label, url in tabs]
