"""The push client's options from the settings."""

from __future__ import annotations

from django.conf import settings

from deliveries.push.options import ClientOptions


def client_options() -> ClientOptions:
    return ClientOptions(
        allow_http=settings.ALLOW_HTTP,
        allow_private=settings.ALLOW_PRIVATE,
        allowed_networks=tuple(settings.ALLOWED_NETWORKS),
        allowed_ports=frozenset(settings.ALLOWED_PORTS),
        ca_file=settings.PUSH_CA_FILE,
        user_agent=settings.PUSH_USER_AGENT,
    )
