"""The push client's options from the settings."""

from __future__ import annotations

import resource

from django.conf import settings

from deliveries.client.options import ClientOptions

#: Files kept for Redis, the database and logs, and the share of the others that one origin may take.
KEPT_FILES = 200
FILES_SHARE = 0.8


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
    """Connections to one origin: as many as may be outstanding, but never every file this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(min(settings.WORKER_OUTSTANDING, int((files - KEPT_FILES) * FILES_SHARE)), 1)
