"""Forked workers and servers differ from new ones in nothing but the time that their imports take."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.preloaded import MODULES, PreloadedProcess

#: With Redis starts what is forked from. It stays, so a test that started it would leave it behind.
pytestmark = pytest.mark.usefixtures("redis_server")

#: What a new process would see before it imports anything.
REPORT = """
import json, sys, threading
from django.conf import settings
from django.db import connection
state = {
    "redis": settings.REDIS_URL,
    "vendor": connection.vendor,
    "database": settings.DATABASES["default"]["NAME"],
    "connected_to": connection.settings_dict["NAME"],
    "modules": sorted(sys.modules),
    "running": [thread.name for thread in threading.enumerate()],
}
print(json.dumps(state))
raise SystemExit
"""


def state_of_a_fork(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what a forked process sees with some variables on top of this process's environment."""
    status, printed = run_a_fork(environment)
    assert status == 0, printed
    return dict(json.loads(printed))


def run_a_fork(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit status of REPORT in a fork, and what it prints."""
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "pushhub.settings"} | environment
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = PreloadedProcess("celery", first=REPORT, environment=environment, log=log.name)
        return process.wait(timeout=600), Path(log.name).read_text()


def test_each_fork_reads_its_own_settings() -> None:
    """Given two forks with different environments, then each has the settings and the database of its own."""
    postgresql = "postgres://someone:x@127.0.0.1:1/first"
    first = state_of_a_fork({"PUSHHUB_REDIS_URL": "redis://127.0.0.1:1/1", "PUSHHUB_DATABASE_URL": postgresql})
    second = state_of_a_fork(
        {"PUSHHUB_REDIS_URL": "redis://127.0.0.1:1/2", "PUSHHUB_DATABASE_URL": "sqlite:////second"}
    )

    assert (first["redis"], first["vendor"]) == ("redis://127.0.0.1:1/1", "postgresql")
    assert first["database"] == first["connected_to"] == "first"
    assert (second["redis"], second["vendor"]) == ("redis://127.0.0.1:1/2", "sqlite")
    assert second["database"] == second["connected_to"] == "/second"


def test_a_fork_has_the_modules_and_no_thread() -> None:
    """Given a fork, then what takes long to import is there, what depends on its settings is not, and no thread is."""
    state = state_of_a_fork({})

    assert set(MODULES) - {"pushhub.urls"} <= set(state["modules"])
    assert not {"pushhub.celery", "pushhub.urls", "pushhub.wsgi"} & set(state["modules"])
    assert state["running"] == ["MainThread"]


def test_a_setting_that_was_read_at_import_cannot_change() -> None:
    """Otherwise a test would set it, and its server would quietly keep another value."""
    status, printed = run_a_fork({"PUSHHUB_WEB_THREADS": "9"})

    assert status == 1
    assert "WEB_THREADS was read when the modules were imported" in printed
