"""Durations as people write them, such as `1.5h` or `1d12h`."""

from __future__ import annotations

import re

from pushhub.common.protojson import MAX_DURATION_SECONDS, format_duration

#: The seconds of each unit, the largest first.
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
UNIT_PATTERN = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([dhms])", re.ASCII)


def read_duration(text: str) -> str | None:
    """Return `600`, `10s`, `1.5h` or `1d12h`, as people write durations, as the API does; None for any other text."""
    text = f"{text}s" if text.replace(".", "", 1).isdecimal() else text
    parts = UNIT_PATTERN.findall(text)
    milliseconds = sum(round(float(number) * 1000) * UNITS[unit] for number, unit in parts)
    if not parts or UNIT_PATTERN.sub("", text).strip() or milliseconds > MAX_DURATION_SECONDS * 1000:
        return None
    return format_duration(milliseconds)
