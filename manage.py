#!/usr/bin/env python
"""PushHub's command line: Django's management commands and ours."""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    if sys.argv[1:2] and sys.argv[1] in ("receive", "pubsub", "iam", "projects"):
        os.environ.setdefault("PUSHHUB_SECRET_KEY", "not used: these speak to a PushHub and are none")
    from django.core.management import execute_from_command_line

    from pushhub.environment import SettingError

    try:
        execute_from_command_line(sys.argv)
    except SettingError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
