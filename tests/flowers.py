"""Flower as in production, for the tests that ask it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import requests

from tests.ports import free_port, wait_for

LOGIN = "admin:correct horse"


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
    command = [sys.executable, "-m", "pushhub.runtime.processes", "flower"]
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: process.poll() is not None or _answers(port), what="Flower")
        assert process.poll() is None, "Flower ended"
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
