"""Signals of the control plane. It doesn't know the receivers: `deliveries` connects itself.

They are sent after the commit, so that a receiver sees the change in the database.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from django.db import transaction
from django.dispatch import Signal

#: kwargs: subscription_id (primary key), name.
subscription_created = Signal()
subscription_changed = Signal()
subscription_deleted = Signal()

#: kwargs: topic_id (primary key), name.
topic_deleted = Signal()

logger = logging.getLogger(__name__)


def announce(signal: Signal, **kwargs: Any) -> None:
    """Send `signal` after the commit. A failing receiver is logged, because the change has already happened."""
    transaction.on_commit(partial(_send, signal, kwargs))


def _send(signal: Signal, kwargs: dict[str, Any]) -> None:
    for receiver, answer in signal.send_robust(sender=None, **kwargs):
        if isinstance(answer, Exception):
            logger.error("receiver %r failed for %s", receiver, kwargs, exc_info=answer)
