"""Helpers for the tests of programs that use Pub/Sub. Nothing here needs Django or a running PushHub.

    from pushhub.testing import Emulator

    with Emulator(projects=["demo,orders:billing"]) as emulator:
        os.environ["PUBSUB_EMULATOR_HOST"] = emulator.host_port
        ...
        emulator.reset()

With pytest, the fixture `pubsub_emulator` does this (pushhub/testing/plugin.py).
"""

from __future__ import annotations

from pushhub.testing.emulator import Emulator, EmulatorError

__all__ = ["Emulator", "EmulatorError"]
