"""Django's `migrate`, which several machines may start at once: one migrates, and the others wait and find it done."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from django.core.management.commands import migrate
from django.db import connections

from pushhub.common.advisory import advisory_lock


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        is_shared = connections[alias].vendor == "postgresql"
        with advisory_lock("pushhub migrate", using=alias) if is_shared else nullcontext():
            super().handle(*args, **options)
