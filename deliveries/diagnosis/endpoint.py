"""The endpoint's side of a diagnosis: name, address guard, connection, certificate, and a probe on request.

Everything goes through the guard that pushes go through, and dials only addresses that it has passed. The steps tell
what the reasons of nacks tell anyway (`dns_failed`, `address_denied`, `connect_failed`, `tls_failed`): never an
address, never which block of addresses the guard denies, never anything that the endpoint sent but its status. Only a
certificate that does not verify is described further, and only at an address that may be pushed to.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.diagnosis.steps import Step, StepName, failed, ok
from deliveries.inspection.advice import result_advice
from deliveries.inspection.words import result_text
from deliveries.push.sending.httpclient import ClientOptions, Headers, PushClient, PushResult, client_context
from deliveries.rules.outcome import ACK_STATUSES, Reason
from pushhub.common.pushurls import Origin

#: Addresses of one name that are tried.
MAX_ADDRESSES = 8
#: How long a probe may take; a push may take its ack deadline.
PROBE_SECONDS = 10.0
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


def endpoint_steps(origin: Origin, options: ClientOptions) -> Iterator[Step]:
    """Yield the steps up to the certificate, until one fails."""
    addresses = host_addresses(origin.host, options.dns_timeout_s)
    if not addresses:
        yield failed(StepName.NAME, _("The endpoint's host name has no address."), result=Reason.DNS_FAILED)
        return
    yield ok(StepName.NAME, _("The endpoint's host name has an address."))
    guard = options.guard()
    permitted = [address for address in addresses if not guard.why_denied(address, origin.port)]
    if not permitted:
        yield failed(
            StepName.GUARD,
            _("The address guard denies the endpoint's address."),
            result=Reason.ADDRESS_DENIED,
        )
        return
    yield ok(StepName.GUARD, _("The address guard permits the endpoint's address."))
    connected = _connected(permitted, origin.port, options.connect_timeout_s)
    if isinstance(connected, Reason):
        text = _("Nothing answers at port %(port)d of the endpoint.") % {"port": origin.port}
        yield failed(StepName.CONNECTION, text, result=connected)
        return
    with connected:
        yield ok(StepName.CONNECTION, _("Port %(port)d of the endpoint takes connections.") % {"port": origin.port})
        yield _certificate(connected, origin, options)


def _certificate(plain: socket.socket, origin: Origin, options: ClientOptions) -> Step:
    if not origin.tls:
        return ok(StepName.CERTIFICATE, _("An http endpoint has no certificate."))
    context = client_context(ca_file=options.ca_file, verify=options.tls_verify)
    plain.settimeout(options.tls_timeout_s)
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


def host_addresses(host: str, seconds: float) -> list[str]:
    """Return the addresses of a host, in the system's order; none where the look-up fails or takes too long."""
    addresses: dict[str, None] = {}

    def look_up() -> None:
        with contextlib.suppress(OSError, UnicodeError):
            for row in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
                addresses[str(row[4][0])] = None

    # The system's resolver has no time limit of its own.
    thread = threading.Thread(target=look_up, name="diagnosis-resolver", daemon=True)
    thread.start()
    thread.join(seconds)
    return list(addresses)[:MAX_ADDRESSES]


def _connected(addresses: Sequence[str], port: int, seconds: float) -> socket.socket | Reason:
    """Return a connection to the first address that takes one, or how a push ends."""
    ends, reason = time.monotonic() + seconds, Reason.CONNECT_FAILED
    for position, address in enumerate(addresses):
        share = max(ends - time.monotonic(), 0.1) / (len(addresses) - position)
        try:
            return socket.create_connection((address, port), timeout=share)
        except TimeoutError:
            reason = Reason.CONNECT_TIMEOUT
        except OSError:
            reason = Reason.CONNECT_FAILED
    return reason


def probe(url: str, headers: Headers, body: bytes, options: ClientOptions, *, seconds: float, token: str) -> Step:
    """POST one message to the endpoint, as a push does. `token` describes the token among the headers."""
    return answer_step(asyncio.run(_probe(url, headers, body, options, seconds)), token=token)


async def _probe(url: str, headers: Headers, body: bytes, options: ClientOptions, seconds: float) -> PushResult:
    loop = asyncio.get_running_loop()
    client = PushClient(loop, options=options)
    answered: asyncio.Future[PushResult] = loop.create_future()
    try:
        endpoint = client.prepare(url, headers=headers)
        client.post(endpoint, body, timeout_s=seconds, on_done=answered.set_result)
        return await answered
    finally:
        await client.close()


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
