"""What to do about a push that failed, by its HTTP status or the reason that it got none."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.rules.outcome import Reason

_LOG = gettext_lazy("Look at the log of the push workers.")
_SMALLER = gettext_lazy("Answer with a small header and body: only the status counts.")
REMEDIES: dict[str, Any] = {
    Reason.DEADLINE_EXCEEDED: gettext_lazy("Answer before the ack deadline, or raise the deadline."),
    Reason.CONNECT_TIMEOUT: gettext_lazy("Start the endpoint, or open its firewall for PushHub."),
    Reason.CONNECT_FAILED: gettext_lazy("Start the endpoint, or open its firewall for PushHub."),
    Reason.DNS_FAILED: gettext_lazy("Correct the name, or add it to the DNS."),
    Reason.TLS_FAILED: gettext_lazy(
        "Let the endpoint speak TLS 1.2 or newer, with a valid certificate for its host name."
    ),
    Reason.RESET: gettext_lazy("Find out why the endpoint closes the connection before it answers."),
    Reason.INVALID_RESPONSE: gettext_lazy("Let the endpoint speak HTTP/1.1."),
    Reason.HEADER_TOO_LARGE: _SMALLER,
    Reason.BODY_INCOMPLETE: gettext_lazy("Find out why the endpoint closes the connection within its answer."),
    Reason.BODY_TIMEOUT: _SMALLER,
    Reason.BODY_TOO_LARGE: _SMALLER,
    Reason.ABORTED: _LOG,
    Reason.ADDRESS_DENIED: gettext_lazy(
        "Push to a public address. An operator may add a private network to PUSHHUB_ALLOWED_NETWORKS."
    ),
    Reason.TOKEN_DENIED: gettext_lazy(
        "Let the service account exist and be enabled, and grant the project's service agent "
        "roles/iam.serviceAccountTokenCreator on it."
    ),
    Reason.INVALID_ENDPOINT: gettext_lazy("Correct the push endpoint."),
    Reason.TRANSFORM_FAILED: gettext_lazy("Correct the function, or switch it off."),
    Reason.INTERNAL: _LOG,
}


def result_advice(result: str, *, token: str = "") -> str:
    """Return what to do about a result that is no ack, or "". `token` describes the token that was sent."""
    return _status_advice(int(result), token) if result.isdecimal() else str(REMEDIES.get(result, ""))


def _status_advice(status: int, token: str) -> str:
    if status in (401, 403):
        return f"{_('Check how the endpoint verifies the token: issuer, audience and email.')} {token}".strip()
    if status in (404, 405):
        return _("Correct the path of the push endpoint, and let it take POST.")
    if status == 413:
        return _("Let the endpoint take bodies as large as the messages.")
    if status == 429:
        return _("Let the endpoint take more requests, or set x-pushhub-rate.")
    if 300 <= status < 400:
        return _("Configure the address that it redirects to: pushes do not follow redirects.")
    if status >= 500:
        return _("Look at the endpoint's own log: the fault is there.")
    return _("Answer 102, 200, 201, 202 or 204 to acknowledge.")
