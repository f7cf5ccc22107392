"""Migrates the database in a process of its own, while other parts start.

Migrations load all versions of all models. That memory is free again when the process ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

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
        self._result, result_end = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _prepare(result_end)
        os.close(result_end)

    def wait(self) -> str:
        """Wait for the end. Return the password of the new admin login, or "" if there is a superuser already.

        Raises PreparationError.
        """
        with os.fdopen(self._result, "rb") as pipe:
            output = pipe.read()
        os.waitpid(self._pid, 0)
        result: dict[str, str] = json.loads(output) if output else {"error": "see the lines above"}
        if "error" in result:
            raise PreparationError(result["error"])
        return result["password"]


def _prepare(result_end: int) -> NoReturn:
    # On Ctrl-C the parent waits for this process before it stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result: dict[str, str] = {}
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        result = {"password": create_admin_login()}
    except DatabaseError as error:
        result = {"error": str(error).strip().splitlines()[0]}
    except SystemCheckError as error:
        result = {"error": str(error)}
    except BaseException:
        sys.excepthook(*sys.exc_info())
    if result:
        os.write(result_end, json.dumps(result).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
