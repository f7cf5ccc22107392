"""Migrates the database in a process of its own, while other parts start.

Migrations load all versions of all models. That memory is free again when the process ends.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError

from pushhub.common.databases import refusal_line
from pushhub.runtime.forking import Child


class PreparationError(Exception):
    """The database cannot be used; the text says why."""


def wait_for_preparation(child: Child, say: Callable[[str], None]) -> str:
    """Wait for the end of `prepare_database`. What it writes before its last line goes to `say`.

    Return the password of the new admin login, or "" if there is a superuser already. Raises PreparationError.
    """
    with os.fdopen(os.dup(child.output)) as output:
        *lines, last = output.read().split("\n")
    for line in lines:
        say(line)
    if child.wait_for_exit():
        raise PreparationError(last or "see the lines above")
    return last


def prepare_database() -> int:
    """Migrate and create the admin login. Print its password or, with the exit status 1, what is wrong."""
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        sys.stdout.write(create_admin_login())
    except DatabaseError as error:
        sys.stdout.write(str(error).strip().splitlines()[0])
        return 1
    except SystemCheckError as error:
        sys.stdout.write(refusal_line("default") or str(error))
        return 1
    return 0


def create_admin_login() -> str:
    """Create the login `admin` and return its password. Return "" if there is a superuser already."""
    from django.contrib.auth import get_user_model

    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return ""
    password = secrets.token_urlsafe(12)
    users.create_superuser(username="admin", password=password)
    return password
