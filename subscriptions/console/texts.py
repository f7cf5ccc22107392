"""Texts of the console: those of several lines that its forms take, and why a caller is denied something."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import orjson
from django import forms
from django.utils.translation import get_language, gettext_lazy, trans_real
from django.utils.translation import gettext as _

from pushhub.common.errors import PermissionDenied, PushHubError


class TextField(forms.CharField):
    """A text of several lines as it was entered. Browsers end the lines of a form with CR LF."""

    widget = forms.Textarea

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> str:
        return str(super().to_python(value)).replace("\r\n", "\n")


class _Decoder(json.JSONDecoder):
    """Raises JSONDecodeError for all that is no JSON: halves of a surrogate pair, a number of thousands of digits."""

    def decode(self, s: str) -> Any:  # type: ignore[override]
        return orjson.loads(s)


class TextsField(forms.JSONField):
    """Texts by name, as an object of JSON."""

    default_error_messages = {"invalid": gettext_lazy('Enter texts by name, such as {"team": "web"}.')}

    def __init__(self, **options: Any) -> None:
        super().__init__(decoder=_Decoder, **options)

    def to_python(self, value: Any) -> Any:
        texts: Any = super().to_python(value)
        if not isinstance(texts, dict | None) or not all(isinstance(text, str) for text in (texts or {}).values()):
            raise forms.ValidationError(self.error_messages["invalid"])
        return texts


#: How the keys of these texts begin in a catalogue, as gettext has contexts.
REFUSAL = "refusal\x04"
#: What each kind of error means, for readers of another language than that of its text, which is the API's.
SUMMARIES = {
    "INVALID_ARGUMENT": gettext_lazy("A value is not accepted:"),
    "FAILED_PRECONDITION": gettext_lazy("That is not possible as things are:"),
    "NOT_FOUND": gettext_lazy("That does not exist, or no longer:"),
    "ALREADY_EXISTS": gettext_lazy("That exists already:"),
    "ABORTED": gettext_lazy("Somebody else has changed it meanwhile:"),
    "RESOURCE_EXHAUSTED": gettext_lazy("A limit is reached:"),
    "UNAVAILABLE": gettext_lazy("That cannot be done now; try again later:"),
}


def error_text(error: PushHubError) -> str:
    """Return the text of an error in the reader's language, or else preceded by what it means.

    Catalogues have the texts that the console's readers meet.
    """
    if isinstance(error, PermissionDenied):
        return denied_text(error)
    language, text = get_language() or "en", _(error.message)
    if text != error.message or error.code not in SUMMARIES or language.startswith("en"):
        return text
    for pattern, translation in _refusals(language):
        if named := pattern.fullmatch(text):
            return translation % named.groupdict()
    return f"{SUMMARIES[error.code]} {text}"


@cache
def _refusals(language: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the texts with values that a catalogue has in the context `refusal`: a pattern, and its translation."""
    catalog = trans_real.translation(language)._catalog  # type: ignore[attr-defined]  # it has no public list
    return [
        (re.compile(re.sub(r"%\\\((\w+)\\\)s", r"(?P<\1>.*)", re.escape(key.removeprefix(REFUSAL))), re.DOTALL), text)
        for key, text in catalog.items()
        if isinstance(key, str) and key.startswith(REFUSAL)
    ]


def denied_text(error: PermissionDenied) -> str:
    """Return in the reader's language which permission is missing."""
    for detail in error.details:
        metadata = detail.get("metadata", {})
        if "permission" in metadata:
            return str(_("You need the permission %(permission)s on %(resource)s.") % metadata)
    return error.message
