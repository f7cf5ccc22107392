"""The emulator's Celery worker. Celery's own prints lines about tasks when it is stopped, and starts anew at SIGHUP."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from celery.apps import worker
from celery.worker import state

from pushhub.emulator import stop_signals

STOPPING = b"[pubsub] INFO: stopping: pushes under way end first; Ctrl-C again stops at once\n"


class Worker(worker.Worker):
    """Stops at each signal that asks for it, and at once at the second one."""

    def install_platform_tweaks(self, worker: Any) -> None:
        for number in stop_signals():
            signal.signal(number, _stop)


def _stop(*_: Any) -> None:
    if state.should_stop is not None:
        raise KeyboardInterrupt
    state.should_stop = os.EX_OK  # type: ignore[assignment]  # the published type is wrong
    os.write(sys.stdout.fileno(), STOPPING)  # print may be interrupted by this very signal, and can't be called again
