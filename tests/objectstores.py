"""Object stores for tests: moto's S3 on loopback, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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
