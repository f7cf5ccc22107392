"""The adapter to the HTTP client, and the only module that imports it.

The worker uses `prepare`, `post` and `close` of a client, the `origin` of an endpoint, and the fields of a result. The
diagnosis of an endpoint uses the options, the dialer, the resolver and the TLS context as well.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, TypeAlias

from django.conf import settings

from deliveries.client.client import ClientOptions as ClientOptions
from deliveries.client.client import Endpoint as Endpoint
from deliveries.client.client import Headers as Headers
from deliveries.client.client import PushClient as PushClient
from deliveries.client.client import PushResult as PushResult
from deliveries.client.dialer import Dialer as Dialer
from deliveries.client.dialer import DialFailed as DialFailed
from deliveries.client.resolver import Resolver as Resolver
from deliveries.client.tls import ResumingContext as ResumingContext
from deliveries.client.tls import client_context as client_context

if TYPE_CHECKING:
    from deliveries.client.blocking import BlockingClient

#: Open files reserved for Redis, the database and logs, and the share of the others for one origin.
RESERVED_FILES = 200
FILES_SHARE = 0.8


#: A client of a push worker, or of a stock worker.
Client: TypeAlias = "PushClient | BlockingClient"


def push_client(loop: asyncio.AbstractEventLoop) -> PushClient:
    return PushClient(loop, options=client_options())


def blocking_client() -> BlockingClient:
    """Return a client that uses requests, which only the processes that push with it import."""
    from deliveries.client.blocking import BlockingClient

    return BlockingClient(client_options())


def client_options() -> ClientOptions:
    return ClientOptions(
        allow_http=settings.ALLOW_HTTP,
        allow_private=settings.ALLOW_PRIVATE,
        allowed_networks=tuple(settings.ALLOWED_NETWORKS),
        allowed_ports=frozenset(settings.ALLOWED_PORTS),
        ca_file=settings.PUSH_CA_FILE,
        user_agent=settings.PUSH_USER_AGENT,
        own_listeners=(settings.HTTP_ADDRESS, settings.GRPC_ADDRESS, settings.FLOWER_ADDRESS),
        source_addresses=tuple(settings.PUSH_SOURCE_ADDRESSES),
        max_connections=_max_connections(),
    )


def _max_connections() -> int:
    """Return the most connections of one origin: one per outstanding request, within the limit of open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(settings.WORKER_OUTSTANDING, int((files - RESERVED_FILES) * FILES_SHARE)), 1)
