"""Figures, outages and results of pushes in the reader's language.

The result of a failed push is an HTTP status, or the reason that there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.utils.translation import gettext_lazy as _

from deliveries.rules.outcome import Reason
from pushhub.common.outages import Cause
from pushhub.common.redisurls import is_cluster

#: A larger backlog is shown as "more than 10,000": counting a million rows every two seconds would cost too much.
MAX_COUNTED = 10_000
#: The minutes that a rate is the mean of.
MEAN_MINUTES = 5

_START_OR_OPEN = _("Start the endpoint, or open its firewall for PushHub.")
_LOG = _("Look at the log of the push workers.")
_SMALLER = _("Answer with a small header and body: only the status counts.")
#: What happened where a push got no HTTP status, and what to do. People read the first behind the reason's own name,
#: which is the only one on every surface: in metrics, the journal, the API, Flower and the logs.
REASONS: dict[str, tuple[Any, Any]] = {
    Reason.DEADLINE_EXCEEDED: (
        _("no answer within the ack deadline"),
        _("Answer before the ack deadline, or raise the deadline."),
    ),
    Reason.CONNECT_TIMEOUT: (_("a connection that timed out"), _START_OR_OPEN),
    Reason.CONNECT_FAILED: (_("no connection was accepted"), _START_OR_OPEN),
    Reason.DNS_FAILED: (_("a host name that cannot be resolved"), _("Correct the name, or add it to the DNS.")),
    Reason.TLS_FAILED: (
        _("a failed TLS handshake"),
        _("Let the endpoint speak TLS 1.2 or newer, with a valid certificate for its host name."),
    ),
    Reason.RESET: (
        _("a connection that was reset"),
        _("Find out why the endpoint closes the connection before it answers."),
    ),
    Reason.INVALID_RESPONSE: (_("an invalid HTTP response"), _("Let the endpoint speak HTTP/1.1.")),
    Reason.HEADER_TOO_LARGE: (_("a response whose header is too large"), _SMALLER),
    Reason.BODY_INCOMPLETE: (
        _("an incomplete response"),
        _("Find out why the endpoint closes the connection within its answer."),
    ),
    Reason.BODY_TIMEOUT: (_("a response that did not end in time"), _SMALLER),
    Reason.BODY_TOO_LARGE: (_("a response that is too large"), _SMALLER),
    Reason.ABORTED: (_("the stop of a push worker"), _LOG),
    Reason.ADDRESS_DENIED: (
        _("an address that the address guard denies"),
        _("Push to a public address. An operator may add a private network to PUSHHUB_ALLOWED_NETWORKS."),
    ),
    Reason.TOKEN_DENIED: (
        _("a token that cannot be signed"),
        _(
            "Let the service account exist and be enabled, and grant the project's service agent "
            "roles/iam.serviceAccountTokenCreator on it."
        ),
    ),
    Reason.INVALID_ENDPOINT: (_("an endpoint URL that is not valid"), _("Correct the push endpoint.")),
    Reason.TRANSFORM_FAILED: (_("a message transform that failed"), _("Correct the function, or switch it off.")),
    Reason.INTERNAL: (_("an internal error"), _LOG),
}


def result_text(result: str) -> str:
    """Return an HTTP status as it is, or a reason's name with what happened."""
    if result not in REASONS:
        return result
    return _("%(reason)s (%(words)s)") % {"reason": result, "words": REASONS[result][0]}


def nack_text(result: str) -> str:
    """Return why a message was nacked, as a phrase. The result of a pull subscription is ""."""
    if not result:
        return str(_("a subscriber did not acknowledge it"))
    if result.isdecimal():
        return _("the endpoint answered %(status)s") % {"status": result}
    return result_text(result)


def result_advice(result: str, *, token: str = "") -> str:
    """Return what to do about a result that is no ack, or "". `token` describes the token that was sent."""
    return str(_status_advice(int(result), token) if result.isdecimal() else REASONS.get(result, ("", ""))[1])


def _status_advice(status: int, token: str) -> Any:
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


def redis_text(cause: Cause | None) -> str:
    """Return why Redis takes nothing; with a Cluster, one of its servers is enough for that."""
    text = str(_(cause or Cause.REDIS_AWAY))
    return _("%(cause)s (at least one of its servers)") % {"cause": text} if is_cluster(settings.REDIS_URL) else text


def count_text(count: int, *, most: int = MAX_COUNTED) -> str:
    """Return a number of rows that were counted up to a bound."""
    return _("more than %(count)s") % {"count": f"{most:,}"} if count > most else str(count)


def rate_text(rates: Sequence[float]) -> str:
    """Return the mean of the last five of the rates of minutes; "-" if none was counted."""
    recent = rates[-MEAN_MINUTES:]
    return f"{sum(recent) / len(recent):.1f} / s" if recent else "-"
