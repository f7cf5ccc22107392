"""Which processes import what: the web server everything before its first request, a worker nothing of the pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workers import ROOT

#: The console's pages, and the views of REST.
PAGES = ("subscriptions.admin", "deliveries.admin", "rest_framework.views")


#: What Celery does before a worker takes its first task.
WORKER = "from pushhub.celery import app; app.loader.import_default_modules()"


def imported(code: str) -> set[str]:
    """Return those of PAGES that a process has imported after it ran some code."""
    code = f"import django; django.setup(); {code}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(PAGES) & set(done.stdout.split())


def test_the_web_server_has_imported_everything_before_its_first_request() -> None:
    assert imported("import pushhub.wsgi") == set(PAGES)


@pytest.mark.parametrize(
    "code", ["import deliveries.push.worker", WORKER, "import deliveries.pipeline.publishing.parts"]
)
def test_a_process_without_pages_does_not_import_them(code: str) -> None:
    assert imported(code) == set()
