"""PushHub as an emulator: one process without authentication, for development and tests."""

from __future__ import annotations

import signal


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask the emulator to stop: all three, or two under `nohup`."""
    hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else [])]
