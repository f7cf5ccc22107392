"""The endpoint's side of a diagnosis: name, address guard, connection, certificate, and a probe on request.

The push client opens the connection: from its own addresses, and only to addresses that the guard permits. The steps
tell what the reasons of nacks tell anyway (`dns_failed`, `address_denied`, `connect_failed`, `tls_failed`): never an
address, never which block of addresses the guard denies, never anything that the endpoint sent but its status. Only a
certificate that does not verify is described further, and only at an address that may be pushed to.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.diagnosis.steps import Step, StepName, failed, ok
from deliveries.inspection.texts import result_advice, result_text
from deliveries.push.sending.httpclient import (
    ClientOptions,
    Dialer,
    DialFailed,
    PushResult,
    ResumingContext,
    client_context,
)
from deliveries.rules.outcome import ACK_STATUSES, Reason
from pushhub.common.pushurls import BadEndpoint, Origin, parse_push_url

_UNKNOWN_AUTHORITY = (
    gettext_lazy("comes from an unknown authority, or its chain is incomplete"),
    gettext_lazy("Send the intermediate certificates as well, or name the authority in PUSHHUB_PUSH_CA_FILE."),
)
_DOES_NOT_VERIFY = (gettext_lazy("does not verify"), gettext_lazy("Replace it."))
#: OpenSSL's X509_V_ERR codes of a certificate that does not verify.
CERTIFICATE_FAULTS = {
    7: _UNKNOWN_AUTHORITY,  # one with the name of a known authority
    9: (gettext_lazy("is not valid yet"), gettext_lazy("Check the clock of the endpoint, or wait.")),
    10: (gettext_lazy("has expired"), gettext_lazy("Renew it.")),
    18: (
        gettext_lazy("is self-signed"),
        gettext_lazy("Use one of a public authority, or name it in PUSHHUB_PUSH_CA_FILE."),
    ),
    19: _UNKNOWN_AUTHORITY,
    20: _UNKNOWN_AUTHORITY,
    21: _UNKNOWN_AUTHORITY,
    62: (gettext_lazy("is for another host name"), gettext_lazy("Use a certificate for the endpoint's host name.")),
    64: (gettext_lazy("is for another address"), gettext_lazy("Use a certificate for the endpoint's address.")),
}


def endpoint_steps(url: str, options: ClientOptions) -> Iterator[Step]:
    """Yield the steps from the URL to the certificate, as a push takes them, until one fails."""
    try:
        origin = parse_push_url(url, allow_http=options.allow_http, allowed_ports=options.allowed_ports).origin
    except BadEndpoint as error:
        text = _("The endpoint's URL cannot be pushed to: %(fault)s.") % {"fault": _(error.template) % error.values}
        yield failed(StepName.URL, text, result=Reason.INVALID_ENDPOINT)
        return
    yield ok(StepName.URL, _("The endpoint's URL can be pushed to."))
    context = client_context(ca_file=options.ca_file, verify=options.tls_verify)
    connected = asyncio.run(_connected(origin, options, context))
    if connected is Reason.DNS_FAILED:
        yield failed(StepName.NAME, _("The endpoint's host name has no address."), result=connected)
        return
    yield ok(StepName.NAME, _("The endpoint's host name has an address."))
    if connected is Reason.ADDRESS_DENIED:
        yield failed(StepName.GUARD, _("The address guard denies the endpoint's address."), result=connected)
        return
    yield ok(StepName.GUARD, _("The address guard permits the endpoint's address."))
    if isinstance(connected, Reason):
        text = _("Nothing answers at port %(port)d of the endpoint.") % {"port": origin.port}
        yield failed(StepName.CONNECTION, text, result=connected)
        return
    with connected:
        yield ok(StepName.CONNECTION, _("Port %(port)d of the endpoint takes connections.") % {"port": origin.port})
        yield _certificate(connected, origin, context, seconds=options.tls_timeout_s)


async def _connected(origin: Origin, options: ClientOptions, context: ResumingContext) -> socket.socket | Reason:
    """Return a connection to the first address that takes one, or how a push ends."""
    try:
        loop = asyncio.get_running_loop()
        return await Dialer(loop, options=options, context=context, clock=loop.time).connect(origin)
    except DialFailed as failure:
        return failure.reason


def _certificate(plain: socket.socket, origin: Origin, context: ResumingContext, *, seconds: float) -> Step:
    if not origin.tls:
        return ok(StepName.CERTIFICATE, _("An http endpoint has no certificate."))
    plain.settimeout(seconds)
    try:
        with context.wrap_socket(plain, server_hostname=origin.host):
            return ok(StepName.CERTIFICATE, _("The endpoint's certificate is valid."))
    except ssl.SSLCertVerificationError as error:
        fault, advice = CERTIFICATE_FAULTS.get(error.verify_code, _DOES_NOT_VERIFY)
        message = _("The endpoint's certificate %(fault)s.") % {"fault": fault}
        return failed(StepName.CERTIFICATE, message, str(advice), result=Reason.TLS_FAILED)
    except OSError:
        return failed(
            StepName.CERTIFICATE,
            _("The TLS handshake fails."),
            _("Let the endpoint speak TLS 1.2 or newer at this port, with a certificate."),
            result=Reason.TLS_FAILED,
        )


def answer_step(result: PushResult, *, token: str = "") -> Step:
    """Return what the answer to a probe means."""
    if result.reason:
        message = _("The probe failed: %(result)s.") % {"result": result_text(result.reason)}
        return failed(StepName.ANSWER, message, result_advice(result.reason))
    if result.status in ACK_STATUSES:
        words = {"status": result.status, "latency": round(result.latency_ms)}
        return ok(StepName.ANSWER, _("The endpoint answered %(status)d in %(latency)d ms.") % words)
    message = _("The endpoint answered %(status)d.") % {"status": result.status}
    return failed(StepName.ANSWER, message, result_advice(str(result.status), token=token))
