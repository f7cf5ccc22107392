"""How a resource is kept: for each of its fields, how to store it in the columns of a row and how to show it again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pushhub.common.errors import Unimplemented
from pushhub.common.protojson import Message, format_duration, parse_duration

Row = TypeVar("Row")
#: A resource in canonical JSON form: fields at their default are left out.
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """How one field is kept in the columns of a row.

    `store` gets the whole resource, because a default may depend on another field; that way the order of the fields
    doesn't matter. `show` returns None, or the default of the field's type, where the field is left out.
    """

    name: str
    store: Callable[[Row, Values], None]
    show: Callable[[Row], Any]
    is_mutable: bool = True


class Table(Generic[Row]):
    """The fields that callers can set on a resource.

    PushHub refuses every field that `fields` doesn't have. To accept it and do nothing would lose messages, or deliver
    them in a form that nobody asked for. `fixed` names the fields that only the creation of the resource sets.
    """

    def __init__(self, message: Message, fields: Sequence[Field[Row]], *, fixed: frozenset[str]) -> None:
        self._message = message
        self.fields = {field.name: field for field in fields}
        refused = message.fields.keys() - self.fields.keys() - message.output_only - fixed
        self.names = (*self.fields, *sorted(refused))
        #: The fields that an update may change.
        self.stored_mutable = [field.name for field in fields if field.is_mutable]
        self.mutable = frozenset({*refused, *self.stored_mutable})

    def store(self, row: Row, values: Values, names: Collection[str] | None = None) -> None:
        """Set the columns of the named fields, or of all fields, from `values`."""
        for name in self.names:
            if names is not None and name not in names:
                continue
            field = self.fields.get(name)
            if field is not None:
                field.store(row, values)
            elif values.get(name) not in (None, []):
                raise unsupported(name)

    def show(self, row: Row) -> dict[str, Any]:
        """Return the current values of the fields that callers can set."""
        shown = {name: field.show(row) for name, field in self.fields.items()}
        kinds = self._message.fields
        return {
            name: value for name, value in shown.items() if value or (value is not None and kinds[name].has_presence)
        }


def unsupported(name: str) -> Unimplemented:
    return Unimplemented(f"The field {name} is not supported by PushHub.", field=name)


def column(name: str, attribute: str, convert: Callable[[Any], Any], *, is_mutable: bool = True) -> Field[Any]:
    """A field that is one column. `convert` gets None for an absent field."""

    def store(row: Any, values: Values) -> None:
        setattr(row, attribute, convert(values.get(name)))

    return Field(name, store, lambda row: getattr(row, attribute), is_mutable=is_mutable)


def drop_falsy(values: Values) -> dict[str, Any]:
    """Return the values but for 0, False and those that are empty, which the API leaves out of its answers."""
    return {name: value for name, value in values.items() if value}


def duration_ms(value: str | None, field: str) -> int | None:
    return None if value is None else parse_duration(value, field=field)


def store_duration(row: Any, name: str, milliseconds: int | None) -> None:
    """Set both columns of a duration: the whole seconds that PushHub acts upon, rounded up, and what the API shows."""
    setattr(row, f"{name}_seconds", _rounded_up(milliseconds))
    setattr(row, f"{name}_ms", milliseconds)


def show_duration(row: Any, name: str) -> str | None:
    """Return a duration. The previous release writes the seconds alone, and then those count."""
    seconds, milliseconds = getattr(row, f"{name}_seconds"), getattr(row, f"{name}_ms")
    if seconds is None:
        return None
    return format_duration(milliseconds if _rounded_up(milliseconds) == seconds else seconds * 1000)


def _rounded_up(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else -(-milliseconds // 1000)
