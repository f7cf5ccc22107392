"""The client is configured as in production: with TLS, and with a key file in place of the emulator's variable."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from pytest_django.live_server_helper import LiveServer

from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.certificates import Authority
from tests.grpcservers import GrpcServer
from tests.integration.identity.keyfiles import NAME, key_file

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"
SCRIPT = f"""
import sys, threading
from google.cloud import pubsub_v1
options = {{"api_endpoint": sys.argv[1]}}
publisher = pubsub_v1.PublisherClient.from_service_account_file(sys.argv[2], client_options=options)
print(publisher.publish("{TOPIC}", b"over TLS").result(timeout=30))
subscriber = pubsub_v1.SubscriberClient.from_service_account_file(sys.argv[2], client_options=options)
done = threading.Event()
def take(message):
    print(message.data.decode())
    message.ack()
    done.set()
future = subscriber.subscribe("{SUBSCRIPTION}", callback=take)
assert done.wait(30)
future.cancel()
future.result(timeout=30)
try:
    publisher.create_topic(name="{TOPIC}-2", timeout=30)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_with_a_key_file_publishes_and_subscribes_over_tls(
    transactional_db: None, redis_url: str, live_server: LiveServer, tmp_path: Path, authority: Authority
) -> None:
    key = key_file()
    (tmp_path / "key.json").write_text(json.dumps(key))
    create_topic(name=TOPIC, topic={})
    create_subscription(name=SUBSCRIPTION, subscription={"topic": TOPIC})
    member = f"serviceAccount:{NAME.rpartition('/')[2]}"
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member=member)
    grants.grant_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=member)
    chain = str(authority.chain("localhost"))
    tls = {"PUSHHUB_GRPC_TLS_CERT": chain, "PUSHHUB_GRPC_TLS_KEY": chain}
    environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.ca_file)}
    environment.pop("PUBSUB_EMULATOR_HOST", None)

    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_ANONYMOUS="", PUSHHUB_DEVELOPMENT="0", **tls) as server:
        address = server.address.replace("127.0.0.1", "localhost")
        command = [sys.executable, "-W", "ignore", "-c", SCRIPT, address, str(tmp_path / "key.json")]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert process.returncode == 0, process.stderr
        message_id, text, error = process.stdout.split("\n", 2)
        assert (int(message_id) > 0, text, error.strip()) == (True, "over TLS", "PermissionDenied")

        answer = requests.get(f"https://{address}/healthz", verify=str(authority.ca_file), timeout=30)
        assert answer.status_code == 200, "REST speaks TLS on that port as well"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1", "h2"], "http/1.1"), (["h2"], "h2"), ([], None)],
    ids=["a REST client that prefers h2", "a REST client", "a gRPC client", "an old client"],
)
def test_only_clients_that_offer_nothing_else_get_http_2(
    transactional_db: None,
    redis_url: str,
    live_server: LiveServer,
    authority: Authority,
    offered: list[str],
    chosen: str | None,
) -> None:
    chain = str(authority.chain("localhost"))
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_GRPC_TLS_CERT=chain, PUSHHUB_GRPC_TLS_KEY=chain) as server:
        context = ssl.create_default_context(cafile=str(authority.ca_file))
        if offered:
            context.set_alpn_protocols(offered)
        host, _, port = server.address.partition(":")
        with (
            socket.create_connection((host, int(port)), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
        ):
            assert client.selected_alpn_protocol() == chosen
            if chosen != "h2":
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
