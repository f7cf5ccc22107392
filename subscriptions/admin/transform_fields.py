"""The console's fields of message transforms: a field per function, so that a form needs no script to change them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy

from subscriptions.admin.resource_forms import Fields, Section, ServiceForm
from subscriptions.console.texts import TextField
from subscriptions.resources.fields import TRANSFORMS
from subscriptions.resources.table import drop_falsy
from subscriptions.services.transforms import check_transforms

FIELD_NAMES = ("transform_1", "transform_2", "transform_3", "transform_4", "transform_5")
TRANSFORMS_SECTION = Section(gettext_lazy("Message transforms"), FIELD_NAMES, "collapse")
#: The id of a resource whose own id is refused, so that its service can tell what else is wrong.
STAND_IN = f"stand-in-{uuid4()}"
#: The place of a transform in a path that a service names, such as `messageTransforms[1].javascriptUdf.code`.
PATH = re.compile(r"messageTransforms\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class EnteredTransform:
    """A transform of the API in a form. Functions are applied in the order of their positions."""

    transform: Fields
    position: int


class TransformWidget(forms.MultiWidget):
    """The inputs of one function, folded up while they are empty."""

    template_name = "subscriptions/transform.html"
    use_fieldset = True

    def __init__(self, position: int) -> None:
        self._position = position
        code = forms.Textarea(attrs={"rows": 8, "cols": 80, "class": "mono", "spellcheck": "false"})
        super().__init__(
            {
                "name": forms.TextInput(attrs={"class": "mono", "spellcheck": "false"}),
                "code": code,
                "position": forms.NumberInput(attrs={"min": 1}),
                "disabled": forms.CheckboxInput(),
                "remove": forms.CheckboxInput(),
            }
        )

    def decompress(self, value: EnteredTransform | None) -> list[Any]:
        if value is None:
            return ["", "", self._position, False, False]
        function = value.transform["javascriptUdf"]
        return [function["functionName"], function["code"], value.position, "disabled" in value.transform, False]


class TransformField(forms.MultiValueField):
    """One function. Its value is None if nothing is entered, or if the function is to be removed."""

    def __init__(self, position: int, **options: Any) -> None:
        self._position = position
        parts = (
            forms.CharField(required=False),
            TextField(required=False),
            forms.IntegerField(required=False),
            forms.BooleanField(required=False),
            forms.BooleanField(required=False),
        )
        label = format_lazy(gettext_lazy("Function {number}"), number=position)
        widget = TransformWidget(position)
        super().__init__(parts, label=label, widget=widget, required=False, require_all_fields=False, **options)

    def compress(self, data_list: Sequence[Any]) -> EnteredTransform | None:
        if not data_list:
            return None
        name, code, position, is_disabled, is_removed = data_list
        if is_removed or not (name or code.strip()):
            return None
        transform = {"javascriptUdf": {"functionName": name, "code": code}, "disabled": is_disabled}
        return EnteredTransform(drop_falsy(transform), self._position if position is None else position)


class TransformsForm(ServiceForm):
    """A form of a resource that has message transforms."""

    transform_1 = TransformField(
        1, help_text=gettext_lazy("JavaScript that changes or filters each message; applied by position")
    )
    transform_2 = TransformField(2)
    transform_3 = TransformField(3)
    transform_4 = TransformField(4)
    transform_5 = TransformField(5)

    @classmethod
    def initial_of(cls, resource: Fields) -> Fields:
        stored = enumerate(resource.get("messageTransforms", ()))
        return super().initial_of(resource) | {
            FIELD_NAMES[index]: EnteredTransform(transform, index + 1) for index, transform in stored
        }

    def transforms_entered(self) -> dict[str, EnteredTransform]:
        """Return the functions by field, in the order in which they are applied."""
        entered = {name: self.cleaned_data[name] for name in FIELD_NAMES if self.cleaned_data.get(name) is not None}
        return dict(sorted(entered.items(), key=lambda item: (item[1].position, item[0])))

    def transforms(self) -> list[Fields]:
        """Return the functions as the API has them."""
        return [entered.transform for entered in self.transforms_entered().values()]

    def _project(self) -> Any:
        """Return the project, unless it is not chosen yet."""
        return self.cleaned_data.get("project") if self.is_new else self.instance.project

    def is_complete(self) -> bool:
        return self._project() is not None

    def check(self) -> None:
        """Run the functions, which the service then knows to be valid."""
        transforms = TRANSFORMS.read(self.transforms(), "messageTransforms")
        check_transforms(project=self._project().project_id, transforms=transforms)

    def _place_of(self, path: str) -> str | None:
        match = PATH.search(path)
        fields = list(self.transforms_entered()) if match else []
        if match and int(match[1]) < len(fields):
            return fields[int(match[1])]
        return super()._place_of(path)
