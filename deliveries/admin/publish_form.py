"""The box of a topic's page that publishes a message."""

from __future__ import annotations

import base64
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from deliveries.publish.request import parse_publish_request


class PublishForm(forms.Form):
    """One message, as text. Its rules are those of the API."""

    text = forms.CharField(label=gettext_lazy("Data"), required=False, widget=forms.Textarea(attrs={"rows": 6}))
    attributes = forms.JSONField(
        label=gettext_lazy("Attributes"), required=False, initial=dict, widget=forms.Textarea({"rows": 2})
    )
    ordering_key = forms.CharField(label=gettext_lazy("Ordering key"), required=False)

    def messages(self) -> Any:
        cleaned = self.cleaned_data
        message = {
            "data": base64.b64encode(cleaned["text"].encode()).decode(),
            "attributes": cleaned["attributes"] or {},
            "orderingKey": cleaned["ordering_key"],
        }
        return parse_publish_request({"messages": [message]})
