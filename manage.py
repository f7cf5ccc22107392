#!/usr/bin/env python
"""PushHub's command line in a checkout: Django's management commands and ours."""

from __future__ import annotations

import sys

from pushhub.cli import manage

if __name__ == "__main__":
    manage(sys.argv)
