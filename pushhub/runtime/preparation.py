"""Migrates the database in a process of its own, while other parts start.

Migrations load all versions of all models. That memory is free again when the process ends.
"""

from __future__ import annotations

import secrets
import sys

from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import DatabaseError

from pushhub.common.databases import refusal_line
from pushhub.common.errors import first_line


def prepare_database() -> int:
    """Migrate and create the admin login. Print as the last line its password or, with status 1, what is wrong."""
    try:
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
        sys.stdout.write(create_admin_login())
    except DatabaseError as error:
        sys.stdout.write(first_line(error))
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
