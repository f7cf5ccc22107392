"""Durations in forms: people write 10m or 7d, the API has 600s."""

from __future__ import annotations

import re
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common.protojson import MAX_DURATION_SECONDS, format_duration, parse_duration

#: The seconds of each unit, the largest first.
UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s*([dhms])", re.ASCII)


class DurationField(forms.CharField):
    """A duration such as 90s, 10m or 1d12h, as the API writes it."""

    default_error_messages = {"invalid": _("Enter a duration such as 30s, 10m, 12h or 7d.")}

    def to_python(self, value: Any) -> str:
        text = str(super().to_python(value)).lower()
        if not text:
            return ""
        parts = _PART.findall(f"{text}s" if text.isdecimal() else text)
        milliseconds = sum(round(float(number) * 1000) * UNITS[unit] for number, unit in parts)
        rest = _PART.sub("", f"{text}s" if text.isdecimal() else text).strip()
        if not parts or rest or milliseconds > MAX_DURATION_SECONDS * 1000:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid")
        return format_duration(milliseconds)


def duration_text(duration: str | None) -> str:
    """Return a duration of the API in the largest unit that fits; parts of a second stay seconds. "" for None."""
    if duration is None:
        return ""
    seconds, rest = divmod(parse_duration(duration, field=""), 1000)
    if rest:
        return duration
    unit, size = next(((unit, size) for unit, size in UNITS.items() if seconds and seconds % size == 0), ("s", 1))
    return f"{seconds // size}{unit}"
