"""Brings the database up to date in a process of its own, beside everything else that starts.

Migrations load all models in all their versions. The process takes that memory with it when it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn

from django.core.management import call_command
from django.db import DatabaseError

from pushhub.runtime.development import admin_login_make


class PreparationError(Exception):
    """The database cannot be used; the text says why."""


class DatabasePreparation:
    """The process, as its parent sees it."""

    def __init__(self) -> None:
        """Fork it. Django must be set up, and this process must have no thread and no connection to the database."""
        self._result, telling = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _prepare(telling)
        os.close(telling)

    def wait(self) -> str:
        """Return the password of the admin login that was made, or "" if there was one.

        Raises PreparationError.
        """
        with os.fdopen(self._result, "rb") as pipe:
            told = pipe.read()
        os.waitpid(self._pid, 0)
        result: dict[str, str] = json.loads(told) if told else {"error": "see the lines above"}
        if "error" in result:
            raise PreparationError(result["error"])
        return result["password"]


def _prepare(telling: int) -> NoReturn:
    # Ctrl-C is the parent's: it waits for this process, and stops then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    result: dict[str, str] = {}
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        result = {"password": admin_login_make()}
    except DatabaseError as error:
        result = {"error": str(error).strip().splitlines()[0]}
    except BaseException:
        sys.excepthook(*sys.exc_info())
    if result:
        os.write(telling, json.dumps(result).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
