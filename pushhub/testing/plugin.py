"""pytest fixtures, which installing PushHub makes available in every test suite of the same environment.

`pubsub_emulator_session` is one emulator for the whole run. Override it in a conftest to give it resources:

    @pytest.fixture(scope="session")
    def pubsub_emulator_session():
        with Emulator(projects=["demo,orders:billing"]) as emulator:
            yield emulator

`pubsub_emulator` resets it for the test and points Google's clients at it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pushhub.testing.emulator import Emulator


@pytest.fixture(scope="session")
def pubsub_emulator_session() -> Iterator[Emulator]:
    """One emulator for the whole test run."""
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def pubsub_emulator(pubsub_emulator_session: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """The emulator with only its initial resources. PUBSUB_EMULATOR_HOST is its address."""
    pubsub_emulator_session.reset()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub_emulator_session.host_port)
    return pubsub_emulator_session
