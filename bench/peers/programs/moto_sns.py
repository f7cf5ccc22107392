"""SNS as moto has it: a topic with an HTTP subscription. The server pushes while it answers the publish."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from urllib.parse import urlencode

from bench.peers.programs.lines import PORT, URL, body_of, replace_process, serve_at_once
from bench.peers.programs.overhttp import Server

ARN = "arn:aws:sns:us-east-1:123456789012:bench"
#: moto knows the service by the scope, and does not check the signature.
HEADERS = (
    "Content-Type: application/x-www-form-urlencoded\r\n"
    "Authorization: AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/sns/aws4_request, SignedHeaders=host, Signature=a"
)
#: The most messages that SNS takes in one request.
BATCH = 10


def start() -> None:
    replace_process("moto.server", "-H", "127.0.0.1", "-p", str(PORT))


async def publish() -> None:
    server = Server(PORT)
    await server.wait()

    async def call(action: str, **fields: str) -> None:
        await server.send("POST", "/", urlencode({"Action": action} | fields).encode(), HEADERS)

    async def send(numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await call("Publish", TopicArn=ARN, Message=body_of(numbers[0]))
            return
        for start in range(0, len(numbers), BATCH):
            entries = {}
            for index, number in enumerate(numbers[start : start + BATCH], 1):
                member = f"PublishBatchRequestEntries.member.{index}"
                entries |= {f"{member}.Id": str(number), f"{member}.Message": body_of(number)}
            await call("PublishBatch", TopicArn=ARN, **entries)

    await call("CreateTopic", Name="bench")
    await call("Subscribe", TopicArn=ARN, Protocol="http", Endpoint=URL)
    await serve_at_once(send)


if __name__ == "__main__":
    start() if sys.argv[1] == "start" else asyncio.run(publish())
