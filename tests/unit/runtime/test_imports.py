"""Which processes import what: the web server everything before its first request, a worker nothing of the pages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.workers import ROOT

#: The console's pages, and the views of REST.
PAGES = ("subscriptions.admin", "deliveries.admin", "rest_framework.views")
#: What the emulator imports when it is first used.
LATER = ("subscriptions.admin", "deliveries.admin", "cryptography.x509", "jwt", "fastavro")


#: What Celery does before a worker takes its first task.
WORKER = "from pushhub.celery import app; app.loader.import_default_modules()"


def imported(code: str, names: Sequence[str] = PAGES, **variables: str) -> set[str]:
    """Return those of these modules that a process has imported after it ran some code."""
    code = f"import django; django.setup(); {code}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT, capture_output=True, text=True, check=True, env={**os.environ, **variables},
    )  # fmt: skip
    return set(names) & set(done.stdout.split())


def test_the_web_server_has_imported_everything_before_its_first_request() -> None:
    assert imported("import pushhub.wsgi") == set(PAGES)


def test_the_emulator_leaves_out_what_few_tests_need() -> None:
    code = "import pushhub.wsgi, pushhub.emulator.process, deliveries.push.worker"
    emulator = {"DJANGO_SETTINGS_MODULE": "pushhub.settings", "PUSHHUB_EMULATOR": "memory"}
    assert imported(code, LATER, **emulator) == set()
    assert {"subscriptions.admin", "jwt"} <= imported(code, LATER)


@pytest.mark.parametrize(
    "code", ["import deliveries.push.worker", WORKER, "import deliveries.pipeline.publishing.parts"]
)
def test_a_process_without_pages_does_not_import_them(code: str) -> None:
    assert imported(code) == set()


@pytest.mark.parametrize("name", ["web", "grpc"])
def test_a_check_of_a_server_imports_no_client_of_redis_or_the_database(name: str) -> None:
    """It runs every 30 s beside each container, and these would take most of its time."""
    code = (
        f"import sys; from pushhub.runtime import processes; sys.argv = ['', '{name}', '--check']\n"
        "try: processes.main()\n"
        "except SystemExit as end: print(end.code, *sys.modules)"
    )
    nothing_listens = {"PUSHHUB_HTTP": "127.0.0.1:1", "PUSHHUB_GRPC": "127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={**os.environ, **nothing_listens, "DJANGO_SETTINGS_MODULE": "pushhub.settings"},
    )  # fmt: skip
    status, *modules = done.stdout.split()
    assert status == "1"
    assert {"redis", "kombu", "django.db.models"} & set(modules) == set()
