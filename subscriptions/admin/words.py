"""The texts of forms about values that a service refuses. They are for people; the API's texts are Google's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from pushhub.common.addresses import OWN_LISTENER
from pushhub.common.errors import AlreadyExists, InvalidArgument, PushHubError
from pushhub.common.pushurls import BadEndpoint, UrlFault, parse_push_url
from subscriptions.console.texts import error_text
from subscriptions.resources.subscriptions import guard_address

_ID = gettext_lazy("Use 3 to 255 letters, digits and any of - . _ ~ + %, beginning with a letter, and not with “goog”.")
#: The values that each field of a form accepts.
ACCEPTED: Mapping[str, Any] = {
    "subscription_id": _ID,
    "topic_id": _ID,
    "new_topic": _ID,
    "new_dead_letter_topic": _ID,
    "account_id": gettext_lazy("Use 6 to 30 lower-case letters, digits and hyphens, beginning with a letter."),
    "new_service_account": gettext_lazy("Use 6 to 30 lower-case letters, digits and hyphens, beginning with a letter."),
    "service_account": gettext_lazy("An audience needs a service account: choose one, or name a new one."),
    "ack_deadline_seconds": gettext_lazy("Choose 10 to 600 seconds."),
    "message_retention": gettext_lazy("Choose 10 minutes to 31 days, for example 10m or 7d."),
    "minimum_backoff": gettext_lazy("Choose up to 600 seconds, for example 10s, and not more than the maximum."),
    "maximum_backoff": gettext_lazy("Choose up to 600 seconds, for example 600s, and not less than the minimum."),
    "max_delivery_attempts": gettext_lazy("Choose 5 to 100 attempts."),
    "expiration": gettext_lazy("Choose at least one day, for example 31d, or leave it empty."),
    "push_attributes": gettext_lazy("Use only the names below, with texts as values."),
    "labels": gettext_lazy(
        "Use at most 64 labels. Keys and values have up to 63 lower-case letters, digits, - and _; a key begins with a "
        "letter."
    ),
}
ENDPOINT_FAULTS = {
    UrlFault.BAD_URL: gettext_lazy("Enter a complete URL, such as https://example.com/push."),
    UrlFault.SCHEME_DENIED: gettext_lazy("The URL has to begin with https://."),
    UrlFault.PORT_DENIED: gettext_lazy("PushHub does not push to this port."),
    UrlFault.BAD_HOST: gettext_lazy("This is no host name: enter a URL such as https://example.com/push."),
}


def refusal_text(error: PushHubError, field: str | None, value: Any) -> str:
    """Return the text for an error of a service, for the field of a form with this value, or for the whole form."""
    if isinstance(error, AlreadyExists):
        return _("There is one of this name already. Choose another.")
    if isinstance(error, InvalidArgument) and field is not None and field in ACCEPTED:
        return str(ACCEPTED[field])
    return (endpoint_refusal(value) if field == "push_endpoint" else "") or error_text(error)


def endpoint_refusal(url: str) -> str:
    """Return why PushHub would refuse to push to a URL, as far as the URL itself tells; empty if it doesn't."""
    try:
        allowed_ports = frozenset(settings.ALLOWED_PORTS)
        origin = parse_push_url(url, allow_http=settings.ALLOW_HTTP, allowed_ports=allowed_ports).origin
    except BadEndpoint as error:
        return str(ENDPOINT_FAULTS[error.fault])
    why = guard_address().why_denied_host(origin.host, origin.port)
    if why == OWN_LISTENER:
        return _("Port %(port)d is PushHub's own: enter that of the endpoint.") % {"port": origin.port}
    if why:
        return _("PushHub would not push to %(host)s: the address guard denies addresses that are not public.") % {
            "host": origin.host
        }
    return ""
