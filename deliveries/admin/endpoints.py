"""What a look-up of an endpoint's host shows, for the form of a subscription."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from django.contrib import admin
from django.utils.translation import gettext as _

from deliveries.push.sending.httpclient import Resolver
from pushhub.common.pushurls import BadEndpoint, parse_push_url
from subscriptions.resources.subscriptions import guard_address

#: Somebody waits for the page meanwhile.
LOOK_UP_SECONDS = 2.0


def endpoint_warning(url: str) -> str:
    """Return why pushes to a URL would fail as the name system stands now; empty if nothing is known to be wrong."""
    try:
        origin = parse_push_url(url, allow_http=True, allowed_ports=frozenset(range(65536))).origin
    except BadEndpoint:
        return ""  # the form tells what is wrong with the URL itself
    addresses = host_addresses(origin.host, LOOK_UP_SECONDS)
    if not addresses:
        return _("The host %(host)s has no address at the moment: pushes fail until it has one.") % {
            "host": origin.host
        }
    guard = guard_address()
    if all(guard.why_denied(address, origin.port) for address in addresses):
        return _("PushHub would not push to %(host)s: its name leads to an address that the address guard denies.") % {
            "host": origin.host
        }
    return ""


def host_addresses(host: str, seconds: float) -> Sequence[str]:
    """Return the addresses of a host; none where the look-up fails or takes too long."""

    async def resolve() -> Sequence[str]:
        loop = asyncio.get_running_loop()
        resolver = Resolver(loop, clock=time.monotonic, timeout_s=seconds, keep_s=0, keep_failure_s=0)
        return await resolver.resolve(host)

    return asyncio.run(resolve())


admin.site.endpoint_warning = endpoint_warning  # type: ignore[attr-defined]
