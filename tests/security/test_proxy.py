"""The proxy of docker-compose.yml before both ports: nginx with deploy/nginx.conf, and clients of several addresses."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1.types import pubsub

from subscriptions.iam import grants
from subscriptions.identity.access_tokens import create_access_token
from subscriptions.models.iam import AuditEntry
from subscriptions.services.projects import create_project
from tests.certificates import Authority
from tests.ports import free_port, wait_for
from tests.programs import bench_programs
from tests.rawsockets import Ports, ports

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
ADA = "user:ada@example.com"
TOPIC = "projects/shop/topics/orders"
SETTINGS = {"PUSHHUB_BEHIND_PROXY": "on", "PUSHHUB_ANONYMOUS": "", "PUSHHUB_PUBLIC_URL": "https://127.0.0.1"}
#: What the limit of connections counts is the client that the header names, of whom the second one is refused.
ONE_AT_A_TIME = "limit_conn clients 1; set_real_ip_from 127.0.0.0/8; real_ip_header X-Client"
#: Where the proxy's own connections come from, the client's, and what a client pretends.
PROXY, CLIENT, PRETENDED = "127.0.0.7", "127.0.0.2", "192.0.2.9"


@contextmanager
def nginx(started: Ports, folder: Path, changes: Mapping[str, str] = {}) -> Iterator[tuple[int, Path]]:
    """Run nginx with the file of the deployment, in which only addresses and paths are others; yield port and CA."""
    authority = Authority(folder)
    chain, port = authority.chain("127.0.0.1"), free_port()
    (web, web_port), (grpc_host, grpc_port) = started.both["web"], started.both["grpc"]
    text = CONFIGURATION.read_text(encoding="utf-8")
    for old, new in {
        "/tmp/": f"{folder}/",
        "server web:8000 resolve": f"server {web}:{web_port}",
        "server grpc:8085 resolve": f"server {grpc_host}:{grpc_port}",
        # Debian's nginx knows neither `resolve` nor `http2`.
        "http2 on;": f"proxy_bind {PROXY}; grpc_bind {PROXY};",
        "listen 8443 ssl": f"listen 127.0.0.1:{port} ssl http2",
        "listen 8080": f"listen 127.0.0.1:{free_port()}",
        "/run/secrets/tls_certificate": str(chain),
        "/run/secrets/tls_key": str(chain),
        **changes,
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    written = folder / "nginx.conf"
    written.write_text(text, encoding="utf-8")
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    assert program
    command = [program, "-c", str(written), "-p", str(folder), "-g", "daemon off;"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: process.poll() is not None or _listens(port), what="nginx")
        assert process.poll() is None
        yield port, authority.ca_file
    finally:
        process.terminate()
        process.wait(timeout=30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except OSError:
        return False
    return True


@pytest.mark.any_database
@pytest.mark.skipif(not bench_programs(), reason="nginx is not installed")
def test_rest_and_grpc_come_by_one_port_and_each_client_by_its_own_address(
    transactional_db: None, redis_url: str, tmp_path: Path
) -> None:
    grants.grant_role(create_project(project_id="shop"), role="roles/owner", member=ADA)
    bearer = f"Bearer {create_access_token(member=ADA).token}"
    with ports(redis_url, **SETTINGS) as started, nginx(started, tmp_path) as (port, ca_file):
        # When a client creates a topic by REST, and pretends to be another one
        tls = ssl.create_default_context(cafile=ca_file)
        client = http.client.HTTPSConnection("127.0.0.1", port, context=tls, source_address=(CLIENT, 0), timeout=30)
        headers = {"Authorization": bearer, "Content-Type": "application/json", "X-Forwarded-For": PRETENDED}
        client.request("PUT", f"/v1/{TOPIC}-rest", "{}", headers)
        answer = client.getresponse()
        assert (answer.status, json.loads(answer.read())["name"]) == (200, f"{TOPIC}-rest")
        client.close()
        # And another by gRPC
        credentials = grpc.ssl_channel_credentials(ca_file.read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            metadata = [("authorization", bearer), ("x-forwarded-for", PRETENDED)]
            call = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic", pubsub.Topic.serialize)
            call(pubsub.Topic(name=f"{TOPIC}-grpc"), metadata=metadata, timeout=30)
    # Then the audit log has their true addresses, and not that of the proxy
    entries = AuditEntry.objects.filter(resource__startswith=TOPIC).values_list("resource", "address")
    assert dict(entries) == {f"{TOPIC}-rest": CLIENT, f"{TOPIC}-grpc": "127.0.0.1"}


@contextmanager
def connect(port: int, ca_file: Path) -> Iterator[ssl.SSLSocket]:
    tls = ssl.create_default_context(cafile=ca_file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=300) as plain,
        tls.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        yield client


def status(client: ssl.SSLSocket) -> int:
    return int(client.recv(65536).split()[1])


def head(line: str, **headers: object) -> bytes:
    fields = {"Host": "127.0.0.1", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return "\r\n".join([f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode()


@pytest.mark.any_database
@pytest.mark.skipif(not bench_programs(), reason="nginx is not installed")
def test_a_body_does_not_wait_in_the_proxys_memory(transactional_db: None, redis_url: str, tmp_path: Path) -> None:
    """PushHub bounds what bodies take together. This one is too long to be read, so it answers at once."""
    with (
        ports(redis_url, **SETTINGS) as started,
        nginx(started, tmp_path, {"client_body_timeout 30s": "client_body_timeout 1h"}) as (port, ca_file),
        connect(port, ca_file) as client,
    ):
        client.sendall(head(f"POST /v1/{TOPIC}:publish", Content_Length=13_000_000) + bytes(100_000))
        assert status(client) == 401


@pytest.mark.any_database
@pytest.mark.skipif(not bench_programs(), reason="nginx is not installed")
@pytest.mark.parametrize(
    ("first", "same", "other"),
    [("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", "2001:db8:0:2::1"), ("192.0.2.1", "192.0.2.1", "192.0.2.2")],
)
def test_an_ipv6_network_of_64_bits_is_one_client(
    transactional_db: None, redis_url: str, tmp_path: Path, first: str, same: str, other: str
) -> None:
    with (
        ports(redis_url, **SETTINGS) as started,
        nginx(started, tmp_path, {"limit_conn clients 2000": ONE_AT_A_TIME}) as (port, ca_file),
        connect(port, ca_file) as client,
    ):
        # Given a request whose body is still to come
        client.sendall(head(f"POST /v1/{TOPIC}:publish", X_Client=first, Content_Length=100, Expect="100-continue"))
        assert status(client) == 100
        for address, expected in ((same, 429), (other, 200)):
            with connect(port, ca_file) as second:
                second.sendall(head("GET /healthz", X_Client=address))
                assert status(second) == expected, address
