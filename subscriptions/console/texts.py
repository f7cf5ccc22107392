"""Texts of the console: those of several lines that its forms take, and why a caller is denied something."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _

from pushhub.common.errors import PermissionDenied


class TextField(forms.CharField):
    """A text of several lines as it was entered. Browsers end the lines of a form with CR LF."""

    widget = forms.Textarea

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")


def denied_text(error: PermissionDenied) -> str:
    """Return in the reader's language which permission is missing."""
    for detail in error.details:
        metadata = detail.get("metadata", {})
        if "permission" in metadata:
            return str(_("You need the permission %(permission)s on %(resource)s.") % metadata)
    return error.message
