"""Texts of several lines in the console's forms."""

from __future__ import annotations

from typing import Any

from django import forms


class TextField(forms.CharField):
    """A text of several lines as it was entered. Browsers end the lines of a form with CR LF."""

    widget = forms.Textarea

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")
