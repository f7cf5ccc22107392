"""Which push endpoints may be configured, pure (docs/spec-delivery.md#push-endpoints).

This check is only a courtesy to the caller: the push client checks the address again when it opens a socket.
"""

from __future__ import annotations

from pushhub.common.addresses import OWN_LISTENER, AddressGuard
from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.pushurls import BadEndpoint, UrlFault, parse_push_url


def push_endpoint(
    url: str, *, allow_http: bool, allowed_ports: frozenset[int] = frozenset(), guard: AddressGuard | None = None
) -> str:
    """Return `url`, or raise InvalidArgument if PushHub would refuse to push to it.

    The guard checks an address in the URL itself. The addresses of a host name may change until the push.
    """
    try:
        origin = parse_push_url(url, allow_http=allow_http, allowed_ports=allowed_ports).origin
    except BadEndpoint as error:
        if error.fault is UrlFault.PORT_DENIED:
            raise _invalid(url, f"{str(error)[0].upper()}{str(error)[1:]}.") from None
        raise _invalid(
            url, "Refer to https://cloud.google.com/pubsub/subscriber#create for more information."
        ) from None
    why = guard.why_denied_host(origin.host, origin.port) if guard is not None else ""
    if why == OWN_LISTENER:
        raise _invalid(url, f"Port {origin.port} is PushHub's own: give that of the endpoint.")
    if why:
        raise _invalid(
            url,
            f"The host {origin.host} is not allowed ({why}), unless PUSHHUB_ALLOW_PRIVATE or "
            "PUSHHUB_ALLOWED_NETWORKS allows it.",
        )
    return url


def _invalid(url: str, why: str) -> InvalidArgument:
    text = f"Invalid push endpoint given (endpoint={clipped(url)}). {why}"
    return InvalidArgument(text, field="pushConfig.pushEndpoint")
