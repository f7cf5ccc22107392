"""Durations in forms: people write 10m or 7d, the API has 600s."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from pushhub.common.durations import UNITS, read_duration
from pushhub.common.protojson import parse_duration


class DurationField(forms.CharField):
    """A duration such as 90s, 10m or 1d12h, as the API writes it."""

    default_error_messages = {"invalid": _("Enter a duration such as 30s, 10m, 12h or 7d.")}

    def to_python(self, value: Any) -> str:
        text = str(super().to_python(value)).lower()
        duration = read_duration(text) if text else ""
        if duration is None:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid")
        return duration


def duration_text(duration: str | None) -> str:
    """Return a duration of the API in the largest unit that fits; parts of a second stay seconds. "" for None."""
    if duration is None:
        return ""
    seconds, rest = divmod(parse_duration(duration, field=""), 1000)
    if rest:
        return duration
    unit, size = next(((unit, size) for unit, size in UNITS.items() if seconds and seconds % size == 0), ("s", 1))
    return f"{seconds // size}{unit}"
