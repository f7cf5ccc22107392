"""Flower as in production, for the tests that ask it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from tests.ports import free_port, wait_for
from tests.preloaded import PreloadedProcess

LOGIN = "admin:correct horse"
#: Gives the command line and the environment that a deployment gives.
AS_DEPLOYED = """
import os, sys
from pushhub.runtime.processes import flower
process = flower()
os.environ.update(process.environment)
sys.argv += process.command[3:]
"""


@contextmanager
def flower_running(redis_url: str, **settings: str) -> Iterator[str]:
    """Run Flower with a login; yield its address. `settings` are further environment variables."""
    port = free_port()
    environment = {
        **os.environ,
        "PUSHHUB_FLOWER": f"127.0.0.1:{port}",
        "PUSHHUB_FLOWER_LOGIN": LOGIN,
        "PUSHHUB_REDIS_URL": redis_url,
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        **settings,
    }
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = PreloadedProcess("pushhub.runtime.monitor", first=AS_DEPLOYED, environment=environment, log=log.name)
        try:
            wait_for(lambda: process.poll() is not None or _answers(port), what="Flower")
            assert process.poll() is None, log.read().decode()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=30)


def _answers(port: int) -> bool:
    try:
        requests.get(f"http://127.0.0.1:{port}/", timeout=30)
    except requests.ConnectionError:
        return False
    return True
