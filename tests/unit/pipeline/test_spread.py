"""The program that measures the jobs for docs/pipeline-design.md."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.workers import ROOT

pytest.importorskip("pyspark")


def test_it_starts_without_settings_of_django() -> None:
    """It starts a database first, which the settings name."""
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    command = [sys.executable, "-c", "import tests.pipeline.spread"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
