"""Which processes import what: the web server everything before its first request, a worker nothing of the pages."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.workers import ROOT

#: The console's pages, and the views of REST.
PAGES = ("subscriptions.admin", "deliveries.admin", "rest_framework.views")


def imported(module: str) -> set[str]:
    """Return those of PAGES that a process has imported after a module."""
    code = f"import django; django.setup(); import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(PAGES) & set(done.stdout.split())


def test_the_web_server_has_imported_everything_before_its_first_request() -> None:
    assert imported("pushhub.wsgi") == set(PAGES)


@pytest.mark.parametrize("module", ["deliveries.push.worker", "deliveries.pipeline.jobs.parts"])
def test_a_process_without_pages_does_not_import_them(module: str) -> None:
    assert imported(module) == set()
