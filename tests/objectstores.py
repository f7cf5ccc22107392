"""Object stores for tests, on loopback: moto's S3 in this process, and Cloud Storage in another."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tests.ports import wait_for

BUCKET = "shop-archive"
SECRET = "a-secret-that-nothing-may-show"


def s3_environment(port: int) -> Mapping[str, str]:
    """Return the environment variables that lead a program to the server on that port."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def s3_server(port: int) -> Iterator[None]:
    """Start an S3 server with an empty bucket."""
    import boto3
    import requests
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        requests.post(f"http://127.0.0.1:{port}/moto-api/reset", timeout=60).raise_for_status()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield
    finally:
        server.stop()


def gs_environment(port: int) -> Mapping[str, str]:
    """Return the environment variables that lead a program to the emulator on that port."""
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


@contextmanager
def gs_server(port: int) -> Iterator[None]:
    """Start a Cloud Storage emulator with an empty bucket."""
    command = [sys.executable, "-m", "tests.cloudstorage", str(port), BUCKET]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: _is_open(port), what="the emulator")
            yield
        finally:
            process.kill()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True)
class ObjectStore:
    """A kind of object store: the scheme of its addresses, the environment for a server's port, and that server."""

    scheme: str
    environment: Callable[[int], Mapping[str, str]]
    server: Callable[[int], AbstractContextManager[None]]


S3 = ObjectStore("s3", s3_environment, s3_server)
CLOUD_STORAGE = ObjectStore("gs", gs_environment, gs_server)
STORES = (S3, CLOUD_STORAGE)
