"""What the control plane tells whoever listens. It knows nobody of them: `deliveries` connects itself.

Sent once the change is committed, so that a receiver that looks sees it.
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
    """Send `signal` after the commit. A receiver that fails is logged: the change itself has happened."""
    transaction.on_commit(partial(_send, signal, kwargs))


def _send(signal: Signal, kwargs: dict[str, Any]) -> None:
    for receiver, answer in signal.send_robust(sender=None, **kwargs):
        if isinstance(answer, Exception):
            logger.error("receiver %r failed for %s", receiver, kwargs, exc_info=answer)
