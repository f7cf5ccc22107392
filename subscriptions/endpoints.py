"""Which push endpoints may be configured, pure (pubsub-spec.md, section 3.7).

A courtesy to the caller only: the push client judges the address again where the socket opens.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pushhub.errors import InvalidArgument, clipped
from pushhub.ports import WEB_PORTS, is_port_allowed

MAX_ENDPOINT_CHARACTERS = 2048
#: What a URL consists of (RFC 3986), `#` left out: no blanks, no controls, no backslash, nothing beyond ASCII.
URL_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=%]+", re.ASCII)
HOST_LABEL = r"[a-z0-9_]([a-z0-9\-_]{0,61}[a-z0-9_])?"
HOST_NAME = re.compile(rf"(?=.{{1,253}}\Z){HOST_LABEL}(\.{HOST_LABEL})*\.?", re.ASCII)
IPV6_ADDRESS = re.compile(r"[0-9a-f:.]+")


def push_endpoint(url: str, *, allow_http: bool, allowed_ports: frozenset[int] = frozenset()) -> str:
    """`url` itself; InvalidArgument unless it is an absolute https URL without user information or fragment.

    Ports of services that a forged request could harm are refused, but for `allowed_ports`.
    """
    if not _is_acceptable(url, allow_http=allow_http):
        raise _invalid(url, "Refer to https://cloud.google.com/pubsub/subscriber#create for more information.")
    parts = urlsplit(url)
    port = parts.port or WEB_PORTS[parts.scheme]
    if not is_port_allowed(port, allowed_ports):
        raise _invalid(url, f"Port {port} is not one to push to, unless PUSHHUB_ALLOWED_PORTS names it.")
    return url


def _invalid(url: str, why: str) -> InvalidArgument:
    text = f"Invalid push endpoint given (endpoint={clipped(url)}). {why}"
    return InvalidArgument(text, field="pushConfig.pushEndpoint")


def _is_acceptable(url: str, *, allow_http: bool) -> bool:
    if len(url) > MAX_ENDPOINT_CHARACTERS or not URL_CHARACTERS.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    if parts.scheme not in (("https", "http") if allow_http else ("https",)) or "@" in parts.netloc:
        return False
    if port == 0 or parts.netloc.endswith(":"):
        return False
    host = parts.hostname or ""
    return bool((IPV6_ADDRESS if "[" in parts.netloc else HOST_NAME).fullmatch(host))
