"""Forty-five days in nine steps: a key is replaced, an unused subscription expires. `make year` lives a year."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.chaos.year import live
from tests.settings import TEMPORARY


def test_what_only_time_brings_about_loses_no_message() -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    with TemporaryDirectory(prefix="pushhub-year-", dir=TEMPORARY) as folder:
        year = live(Path(folder), days=45, hours=120)
    assert year.published == 18
