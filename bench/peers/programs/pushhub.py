"""PushHub, by the processes of `make up` with their default settings."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Sequence

from bench.message import ATTRIBUTES, HELLO, TOPIC
from bench.peers.programs.lines import PORT, URL, replace_process, serve_at_once
from bench.peers.programs.overhttp import Server
from tests.ports import free_port

ACCOUNT = "pusher@bench.iam.gserviceaccount.com"


def start() -> None:
    ports = {"HTTP": PORT, "GRPC": free_port(), "FLOWER": free_port()}
    addresses = {f"PUSHHUB_{name}": f"127.0.0.1:{port}" for name, port in ports.items()}
    replace_process("pushhub.runtime.supervisor", PUSHHUB_SPARK="off", **addresses)


async def publish() -> None:
    server = Server(PORT)
    await server.wait()
    push = {"pushEndpoint": URL, "oidcToken": {"serviceAccountEmail": ACCOUNT}}
    for method, path, resource in (
        ("PUT", TOPIC, {}),
        ("POST", "projects/bench/serviceAccounts", {"accountId": ACCOUNT.partition("@")[0]}),
        ("PUT", "projects/bench/subscriptions/bench", {"topic": TOPIC, "pushConfig": push}),
    ):
        await server.send(method, f"/v1/{path}", json.dumps(resource).encode())
    data = base64.b64encode(HELLO).decode()

    async def send(numbers: Sequence[int]) -> None:
        messages = [{"data": data, "attributes": ATTRIBUTES | {"number": str(number)}} for number in numbers]
        await server.send("POST", f"/v1/{TOPIC}:publish", json.dumps({"messages": messages}).encode())

    await serve_at_once(send)


if __name__ == "__main__":
    start() if sys.argv[1] == "start" else asyncio.run(publish())
