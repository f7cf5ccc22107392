"""The demo's receiver, which lives as long as its process, and ends with a test."""

from __future__ import annotations

from deliveries.admin import demoreceiver


def stop_receiver() -> None:
    """Stop this process's receiver, if there is one."""
    if demoreceiver._receiver is not None:
        demoreceiver._receiver.stop()
    demoreceiver._receiver = None
