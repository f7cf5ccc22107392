"""One power cut on each database, and the proof that a careless setting would be found. `make power` does many."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests import preloaded
from tests.chaos.power import Cut
from tests.programs import postgresql_programs
from tests.settings import TEMPORARY


@pytest.fixture(scope="module", autouse=True)
def preloading() -> None:
    """Start the process that makes the tables, before a test has to leave nothing behind."""
    preloaded.start()


def cut_power(database: str, **more: bool | float) -> Cut:
    """Return a cut that has been done, in a folder that may not have a long name, as it has sockets."""
    if database == "postgresql" and postgresql_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    with TemporaryDirectory(prefix="pushhub-power-", dir=TEMPORARY) as folder:
        cut = Cut(Path(folder), database, 1, **more)
        cut.run()
    return cut


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_power_cut_loses_nothing_that_was_acknowledged(database: str) -> None:
    assert cut_power(database).dropped


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_power_cut_finds_a_database_that_does_not_synchronize(database: str) -> None:
    with pytest.raises(AssertionError, match="acknowledged messages are lost"):
        cut_power(database, careless=True, kept=0.0)
