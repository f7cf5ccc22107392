"""Errors of commands in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError
from django.db import DatabaseError

from pushhub.common.errors import PushHubError


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what an operator can mend into the error of a command."""
    try:
        yield
    except PushHubError as error:
        raise CommandError(error.message) from error
    except (DatabaseError, OSError) as error:  # also a disk that is full, or an object store that refuses
        raise CommandError((str(error).strip().splitlines() or [type(error).__name__])[0]) from error
