"""Times as `2026-11-22 05:32:07 UTC`."""

from __future__ import annotations

DATETIME_FORMAT = "Y-m-d H:i:s T"
SHORT_DATETIME_FORMAT = DATETIME_FORMAT
DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s T"
