"""The gRPC server: `python -m pushhub.runtime.grpcserver`.

It listens on a loopback port of its own; the public port belongs to the port multiplexer, which
forwards REST requests to the web server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import django
import grpc
from django.conf import settings

from pushhub.common import environment as env
from pushhub.common.servers import listen, raise_open_files, run_loop, serve

if TYPE_CHECKING:
    from subscriptions.rpc.calls import Method

#: How long current calls may go on after the server was asked to stop.
GRACE_SECONDS = 5.0
OPTIONS = [
    # The size of a decompressed request; gRPC decompresses no further.
    ("grpc.max_receive_message_length", 11 * 1024 * 1024),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # Clients of streams send a ping about every 30 s, also between calls.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Of a call whose request isn't read yet, up to one flow-control window is in memory.
    ("grpc.max_concurrent_streams", 256),
    # Connections without calls end, even if only the HTTP/2 preface came.
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # A connection whose peer has vanished is closed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

logger = logging.getLogger("pushhub.runtime.grpcserver")


def services() -> dict[str, dict[str, Method]]:
    """Return every gRPC service and its methods. Django must be set up."""
    from deliveries.rpc import messages, snapshots, streaming
    from subscriptions.rpc import resources

    return {
        "google.pubsub.v1.Publisher": resources.PUBLISHER | messages.PUBLISHER | snapshots.PUBLISHER,
        "google.pubsub.v1.Subscriber": (
            resources.SUBSCRIBER | messages.SUBSCRIBER | streaming.SUBSCRIBER | snapshots.SUBSCRIBER
        ),
        "google.pubsub.v1.SchemaService": resources.SCHEMAS,
        "google.iam.v1.IAMPolicy": resources.POLICIES,
    }


async def make_server() -> tuple[grpc.aio.Server, int]:
    """Return the server, and the loopback port on which it will answer."""
    from google.iam.v1 import iam_policy_pb2
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    from subscriptions.rpc.calls import service_handler
    from subscriptions.rpc.public import PublicServices
    from subscriptions.rpc.reflected import reflected_pool

    methods_by_service = services()
    server = grpc.aio.server(options=OPTIONS, interceptors=[PublicServices()])
    server.add_generic_rpc_handlers([service_handler(name, methods) for name, methods in methods_by_service.items()])
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    names = [*methods_by_service, health.SERVICE_NAME, reflection.SERVICE_NAME]
    described = [module.DESCRIPTOR for module in (iam_policy_pb2, health_pb2, reflection_pb2)]
    reflection.enable_server_reflection(names, server, reflected_pool(methods_by_service, described=described))
    for name in ("", *names):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return server, server.add_insecure_port("127.0.0.1:0")


def tls_context(cert: str, key: str) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or newer and both protocols. Raises SettingError if the files can't be used."""
    if not cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # The first one that the client offers: REST has HTTP/1.1 alone, and gRPC clients offer h2 alone.
    context.set_alpn_protocols(["http/1.1", "h2"])
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise env.SettingError(f"PUSHHUB_GRPC_TLS_CERT and PUSHHUB_GRPC_TLS_KEY cannot be used: {error}") from None
    return context


@asynccontextmanager
async def serving(listening: socket.socket) -> AsyncIterator[None]:
    """Answer calls during the block; then finish the current ones and end the streams as unavailable."""
    from deliveries.publish.writer import publish_writer
    from deliveries.rpc.streams import leases_given_back
    from pushhub.runtime.httpserver.limits import read_limits
    from pushhub.runtime.multiplexer import PortMultiplexer
    from subscriptions.rpc import calls

    server, port = await make_server()
    tls = tls_context(settings.GRPC_TLS_CERT, settings.GRPC_TLS_KEY)
    multiplexer = PortMultiplexer(
        grpc=("127.0.0.1", port), rest=settings.GRPC_REST, limits=read_limits(), files=raise_open_files(), tls=tls
    )
    loop = asyncio.get_running_loop()
    with publish_writer(loop), calls.threads_of(loop):
        await server.start()
        await multiplexer.start(listening)
        logger.info("gRPC at %s:%d", *settings.GRPC_ADDRESS)
        try:
            yield
        finally:
            multiplexer.stop_accepting()
            calls.stopping().set()
            await server.stop(GRACE_SECONDS)
            await leases_given_back(seconds=GRACE_SECONDS)
            await multiplexer.stop()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    try:
        django.setup()
        with listen(settings.GRPC_ADDRESS) as listening, contextlib.suppress(KeyboardInterrupt):
            run_loop(serve(serving(listening)))
    except (env.SettingError, OSError) as error:
        sys.exit(f"the gRPC server cannot start: {error}")


if __name__ == "__main__":
    main()
