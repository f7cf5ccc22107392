"""Migrates the database in a process of its own, while other parts start.

Migrations load all versions of all models. That memory is free again when the process ends.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError

from pushhub.runtime.development import create_admin_login


class PreparationError(Exception):
    """The database cannot be used; the text says why."""


class DatabasePreparation:
    """The parent's handle of the process."""

    def __init__(self) -> None:
        """Fork the process. Django must be set up, and the caller must have no other thread and no open database."""
        context = multiprocessing.get_context("fork")
        self._result, result_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_prepare, args=(result_end,))
        self._process.start()
        result_end.close()

    def wait(self) -> str:
        """Wait for the end. Return the password of the new admin login, or "" if there is a superuser already.

        Raises PreparationError.
        """
        try:
            password, error = self._result.recv()
        except EOFError:
            password, error = "", "see the lines above"
        self._process.join()
        if error:
            raise PreparationError(error)
        return str(password)


def _prepare(result_end: Connection) -> None:
    """Send the password and "", or "" and the error."""
    # On Ctrl-C the parent waits for this process before it stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        result_end.send((create_admin_login(), ""))
    except DatabaseError as error:
        result_end.send(("", str(error).strip().splitlines()[0]))
    except SystemCheckError as error:
        result_end.send(("", str(error)))
