"""Times as in English."""

from __future__ import annotations

from pushhub.formats.en.formats import *  # noqa: F403
