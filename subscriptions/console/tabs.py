"""The tabs of a subscription's pages, some of which are pages of the data plane."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from pushhub.common.principals import Principal
from subscriptions.iam.methods import may_call
from subscriptions.models import Subscription

GET_POLICY = "google.iam.v1.IAMPolicy.GetIamPolicy"

TABS = {
    "overview": (_("Overview"), "admin:deliveries_state"),
    "messages": (_("Messages"), "admin:deliveries_waiting"),
    "dead_letters": (_("Dead letters"), "admin:deliveries_deadletters_of"),
    "metrics": (_("Metrics"), "admin:deliveries_charts"),
    "configuration": (_("Configuration"), "admin:subscriptions_subscription_change"),
}


def subscription_tabs(subscription: Subscription, current: str, *, caller: Principal) -> list[dict[str, Any]]:
    """Return the label, the address and whether it is the current page, for each tab that `caller` may open."""
    tabs: list[dict[str, Any]] = [
        {"label": label, "url": reverse(page, args=[subscription.pk]), "current": name == current}
        for name, (label, page) in TABS.items()
    ]
    history = f"{reverse('admin:subscriptions_auditentry_changelist')}?{urlencode({'q': subscription.name})}"
    if may_call(caller, GET_POLICY, subscription):
        policy = reverse("admin:subscriptions_policy_of", args=[subscription.name])
        tabs.append({"label": _("Permissions"), "url": policy, "current": current == "permissions"})
    tabs.append({"label": _("History"), "url": history, "current": False})
    return tabs
