"""The JSON form of protocol buffers: reads requests strictly, and writes values in Google's form.

A `Message` names its fields and their kinds. `Message.read` takes decoded JSON and returns it in canonical form:
lowerCamelCase names, no fields at their default. It reads both spellings of a name and refuses unknown names.
"""

from __future__ import annotations

import binascii
import math
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from pushhub.common.errors import InvalidArgument, clipped

#: google.protobuf.Duration holds about 10,000 years.
MAX_DURATION_SECONDS = 315_576_000_000
DURATION_PATTERN = re.compile(r"(-?)(\d{1,12})(?:\.(\d{1,9}))?s", re.ASCII)
TIMESTAMP_PATTERN = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
URL_SAFE_TO_STANDARD = str.maketrans("-_", "+/")
DIGITS_OF_A_SECOND = {1_000_000: 0, 1_000: 3, 1: 6}


def snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda capital: "_" + capital[0].lower(), name)


def invalid_value(path: str, type_name: str, value: object, *, why: str = "") -> InvalidArgument:
    """Return the error that Google's JSON front end gives for a value of the wrong type."""
    shown = clipped(f'"{value}"' if isinstance(value, str) else _json_type(value))
    return InvalidArgument(f"Invalid value at '{path}' ({type_name}), {why}{shown}", field=path)


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    return "an object" if isinstance(value, Mapping) else "a list"


def parse_duration(value: object, *, field: str) -> int:
    """Return the milliseconds of `"600s"` or `"1.500s"`. Finer durations are refused: PushHub couldn't return them."""
    match = DURATION_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[2]) > MAX_DURATION_SECONDS:
        raise invalid_value(field, "type.googleapis.com/google.protobuf.Duration", value)
    fraction = (match[3] or "").ljust(9, "0")
    if fraction[3:].strip("0"):
        raise invalid_value(field, "type.googleapis.com/google.protobuf.Duration", value, why="finer than 0.001s: ")
    milliseconds = int(match[2]) * 1000 + int(fraction[:3])
    return -milliseconds if match[1] else milliseconds


def format_duration(milliseconds: int) -> str:
    sign = "-" if milliseconds < 0 else ""
    seconds, rest = divmod(abs(milliseconds), 1000)
    return f"{sign}{seconds}.{rest:03}s" if rest else f"{sign}{seconds}s"


def parse_timestamp(value: object, *, field: str) -> datetime:
    """Return the aware datetime of an RFC 3339 text. Digits below a microsecond are dropped."""
    match = TIMESTAMP_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise invalid_value(field, "type.googleapis.com/google.protobuf.Timestamp", value)
    offset = "+00:00" if match[4] in "Zz" else match[4]
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_value(field, "type.googleapis.com/google.protobuf.Timestamp", value) from None
    return moment + timedelta(microseconds=int((match[3] or "").ljust(6, "0")[:6]))


def format_timestamp(moment: datetime) -> str:
    """Return RFC 3339 in UTC with 0, 3 or 6 digits after the second, for example `2021-02-26T19:13:55.749Z`."""
    utc = moment.astimezone(UTC)
    digits = next(digits for unit, digits in DIGITS_OF_A_SECOND.items() if utc.microsecond % unit == 0)
    fraction = f".{utc.microsecond:06}"[: digits + 1] if digits else ""
    return f"{utc.year:04}-{utc:%m-%dT%H:%M:%S}{fraction}Z"


def parse_bytes(value: object, *, field: str) -> bytes:
    """Decode base64, standard or URL-safe, padded or not. Anything else is refused."""
    if not isinstance(value, str):
        raise invalid_value(field, "TYPE_BYTES", value)
    standard = value.translate(URL_SAFE_TO_STANDARD)
    if "=" not in standard:
        standard += "=" * (-len(standard) % 4)
    try:
        return binascii.a2b_base64(standard.encode("ascii"), strict_mode=True)
    except ValueError:
        raise invalid_value(field, "TYPE_BYTES", value, why="Base64 decoding failed for ") from None


class Kind:
    """Reads values of a proto type. `read` never gets null, which means absent in proto JSON."""

    type_name = "TYPE_MESSAGE"
    #: Whether a default value differs from an absent one. It does for messages, but not for proto3 scalars.
    has_presence = False

    def read(self, value: object, path: str) -> Any:
        raise NotImplementedError

    def refuse(self, value: object, path: str) -> NoReturn:
        raise invalid_value(path, self.type_name, value)

    def check_size(self, size: int, noun: str, path: str, *, most: int) -> None:
        if size > most:
            raise InvalidArgument(
                f"The value for {path} is too large. You passed {size} {noun} in the request, "
                f"but the maximum value is {most}.",
                field=path,
            )


class String(Kind):
    """Text, bounded in bytes. NUL is refused because PostgreSQL can't store it, unless the text is stored as JSON."""

    type_name = "TYPE_STRING"

    def __init__(self, max_bytes: int = 4096, *, takes_nul: bool = False) -> None:
        self.max_bytes = max_bytes
        self.takes_nul = takes_nul

    def read(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            self.refuse(value, path)
        if "\0" in value and not self.takes_nul:
            raise InvalidArgument(f"Invalid value at '{path}' (TYPE_STRING): it holds a NUL character.", field=path)
        self.check_size(len(value.encode()), "bytes", path, most=self.max_bytes)
        return value


class Bool(Kind):
    """true or false. Values that resemble them, such as 1 or "true", are refused."""

    type_name = "TYPE_BOOL"

    def read(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            self.refuse(value, path)
        return value


class Integer(Kind):
    """A number or its decimal text. Proto JSON allows both."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.type_name = f"TYPE_INT{bits}"

    def read(self, value: object, path: str) -> int | str:
        """Return an int32 as a number and an int64 as text."""
        number = self._whole(value, path)
        if not -(1 << (self.bits - 1)) <= number < 1 << (self.bits - 1):
            self.refuse(value, path)
        return number if self.bits <= 32 else str(number) if number else ""

    def _whole(self, value: object, path: str) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
            return int(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
            self.refuse(value, path)
        return int(value)


class Enum(Kind):
    """A name or its number. The first name means unspecified. Without `numbers`, names are numbered from 0."""

    type_name = "TYPE_ENUM"

    def __init__(self, *names: str, numbers: Iterable[int] | None = None) -> None:
        self.names = names
        self.by_number = dict(zip(range(len(names)) if numbers is None else numbers, names, strict=True))

    def read(self, value: object, path: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            value = self.by_number.get(value, value)
        if not isinstance(value, str) or value not in self.names:
            self.refuse(value, path)
        return "" if value == self.names[0] else value


class Duration(Kind):
    """A duration, kept in its canonical text."""

    has_presence = True

    def read(self, value: object, path: str) -> str:
        return format_duration(parse_duration(value, field=path))


class Timestamp(Kind):
    """A point in time, kept in its canonical text."""

    has_presence = True

    def read(self, value: object, path: str) -> str:
        return format_timestamp(parse_timestamp(value, field=path))


class StringMap(Kind):
    """map<string, string>, bounded in entries and in the bytes of each key and value."""

    def __init__(
        self,
        *,
        max_entries: int = 100,
        max_key_bytes: int = 256,
        max_value_bytes: int = 1024,
        values_take_nul: bool = False,
    ) -> None:
        self.max_entries = max_entries
        self.key = String(max_key_bytes)
        self.value = String(max_value_bytes, takes_nul=values_take_nul)

    def read(self, value: object, path: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            self.refuse(value, path)
        self.check_size(len(value), "entries", path, most=self.max_entries)
        if self.is_plain(value):
            return dict(value)
        return {
            self.key.read(key, path): self._read_value(item, f"{path}.{clipped(key)}") for key, item in value.items()
        }

    def is_plain(self, value: Mapping[Any, Any]) -> bool:
        """Return whether these are certainly valid entries; it takes a fraction of the time of `read`."""
        # A character takes up to 4 bytes.
        longest_key, longest_value = self.key.max_bytes // 4, self.value.max_bytes // 4
        for key, text in value.items():
            if type(key) is not str or len(key) > longest_key or "\0" in key:
                return False
            if type(text) is not str or len(text) > longest_value or ("\0" in text and not self.value.takes_nul):
                return False
        return True

    def _read_value(self, value: object, path: str) -> str:
        if value is None:
            self.refuse("null", path)
        return self.value.read(value, path)


class Struct(Kind):
    """google.protobuf.Struct: any JSON object, bounded in size and depth."""

    has_presence = True

    max_values, max_depth = 1000, 16
    key, text = String(256), String()

    def read(self, value: object, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            self.refuse(value, path)
        self._check(value, path, depth=1, left=self.max_values)
        return dict(value)

    def _check(self, value: object, path: str, *, depth: int, left: int) -> int:
        """Check a value; return how many more values the whole may have."""
        if left <= 0 or depth > self.max_depth:
            raise InvalidArgument(f"The value for {path} is too large or too deeply nested.", field=path)
        left -= 1
        if isinstance(value, str):
            self.text.read(value, path)
        if isinstance(value, float) and not math.isfinite(value):
            self.refuse(value, path)
        items: Iterable[object] = value if isinstance(value, list) else ()
        if isinstance(value, Mapping):
            for key in value:
                self.key.read(key, path)
            items = value.values()
        for item in items:
            left = self._check(item, path, depth=depth + 1, left=left)
        return left


class Repeated(Kind):
    """A list, bounded in length."""

    def __init__(self, kind: Kind, *, max_items: int = 100) -> None:
        self.kind = kind
        self.max_items = max_items
        self.type_name = kind.type_name

    def read(self, value: object, path: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(value, path)
        self.check_size(len(value), "items", path, most=self.max_items)
        return [self._read_item(item, f"{path}[{position}]") for position, item in enumerate(value)]

    def _read_item(self, value: object, path: str) -> Any:
        if value is None:
            self.refuse("null", path)
        return self.kind.read(value, path)


class Message(Kind):
    """A proto message by its JSON field names. Output-only fields may be sent and are ignored."""

    has_presence = True

    def __init__(
        self,
        name: str,
        fields: Mapping[str, Kind],
        *,
        output_only: frozenset[str] = frozenset(),
        oneofs: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.name = name
        self.fields = dict(fields)
        self.output_only = output_only
        self.oneofs = dict(oneofs or {})
        self.spellings = {spelling: field for field in self.fields for spelling in (field, snake_case(field))}

    def read(self, value: object, path: str = "") -> dict[str, Any]:
        if not isinstance(value, Mapping):
            if path:
                self.refuse(value, path)
            raise InvalidArgument("Invalid JSON payload received. The body must be a JSON object.", field="body")
        result: dict[str, Any] = {}
        spellings: dict[str, str] = {}
        for spelling, item in value.items():
            field = self._field_of(spelling, spellings, path)
            if item is None or field in self.output_only:
                continue
            kind = self.fields[field]
            parsed = kind.read(item, f"{path}.{field}" if path else field)
            if parsed or kind.has_presence:
                result[field] = parsed
        self._check_oneofs(result, path)
        return result

    def with_output(self, **fields: Kind) -> Message:
        """Return this message with further output-only fields."""
        all_fields, output_only = {**self.fields, **fields}, self.output_only | fields.keys()
        return Message(self.name, all_fields, output_only=output_only, oneofs=self.oneofs)

    def siblings(self, field: str) -> frozenset[str]:
        """Return the fields that setting `field` clears."""
        members = next((members for members in self.oneofs.values() if field in members), ())
        return frozenset(members) - {field}

    def _field_of(self, spelling: str, spellings: dict[str, str], path: str) -> str:
        field = self.spellings.get(spelling)
        if field is None:
            raise unknown_field(spelling, path=path)
        if field in spellings:
            raise InvalidArgument(
                f'Invalid JSON payload received. "{spellings[field]}" and "{spelling}" are two spellings of one field.',
                field=f"{path}.{field}" if path else field,
            )
        spellings[field] = spelling
        return field

    def _check_oneofs(self, result: Mapping[str, Any], path: str) -> None:
        for oneof, members in self.oneofs.items():
            members_set = [member for member in members if member in result]
            if len(members_set) > 1:
                raise InvalidArgument(
                    f"Invalid value at '{path or self.name}' (oneof), oneof field '{oneof}' is already set. "
                    f"Cannot set '{members_set[1]}'",
                    field=f"{path}.{members_set[1]}" if path else members_set[1],
                )


def unknown_field(name: str, *, path: str = "") -> InvalidArgument:
    """Return the error for a field that a request, or its message at `path`, doesn't have."""
    where = f" at '{path}'" if path else ""
    return InvalidArgument(
        f'Invalid JSON payload received. Unknown name "{clipped(name)}"{where}: Cannot find field.',
        field=clipped(f"{path}.{name}" if path else name),
    )


def known_fields(body: object, names: Collection[str]) -> dict[str, Any]:
    """Return the fields of a request that no message describes; none if it is not an object.

    Raises InvalidArgument for other fields than these.
    """
    fields = body if isinstance(body, dict) else {}
    for name in sorted(fields.keys() - set(names)):
        raise unknown_field(name)
    return fields
