"""Bounds and defaults of values, pure (docs/spec-messages.md#subscription-fields, docs/spec.md#error-texts)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from pushhub.common.errors import InvalidArgument, clipped

DAY_MS = 86_400_000
DEFAULT_ACK_DEADLINE_SECONDS = 10
#: The default with exactly-once delivery, as measured in production.
EXACTLY_ONCE_ACK_DEADLINE_SECONDS = 60
ACK_DEADLINE_SECONDS = (10, 600)
RETENTION_MS = (600_000, 31 * DAY_MS)
DEFAULT_RETENTION_MS = 7 * DAY_MS
DEFAULT_TTL_MS = 31 * DAY_MS
MINIMUM_TTL_MS = DAY_MS
BACKOFF_MS = (0, 600_000)
DEFAULT_BACKOFF_MS = (10_000, 600_000)
DELIVERY_ATTEMPTS = (5, 100)
DEFAULT_DELIVERY_ATTEMPTS = 5
MAX_LABELS = 64
#: Of one user-defined function.
FUNCTION_CODE_BYTES = 20_480
TOPICS_PER_PROJECT = 10_000
#: Detached subscriptions count, too.
SUBSCRIPTIONS_PER_PROJECT = 10_000
SUBSCRIPTIONS_PER_TOPIC = 10_000
LABEL_KEY = r"[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}"
LABEL_VALUE = r"[\p{Ll}\p{Lo}\p{N}_-]{0,63}"
#: The only supported form of push requests. Older ones can no longer be configured.
ENDPOINT_VERSIONS = ("v1",)
#: Push attributes that only PushHub has, with their ranges; None stands for true or false.
PUSHHUB_ATTRIBUTES: dict[str, tuple[float, float] | None] = {
    "x-pushhub-rate": (0.001, 1_000_000.0),
    "x-pushhub-burst": (1, 1_000_000),
    "x-pushhub-max-outstanding": (1, 30_000),
    "x-pushhub-keep-answers": None,
}


def duration_text(milliseconds: int) -> str:
    """Return a duration as production writes it in error texts: `9m59s`, `744h`."""
    sign = "-" if milliseconds < 0 else ""
    seconds, rest = divmod(abs(milliseconds), 1000)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    fraction = f"{rest / 1000:.3f}".lstrip("0").rstrip("0") if rest else ""
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    if seconds or rest or not (hours or minutes):
        parts.append(f"{seconds}{fraction}s")
    return sign + "".join(parts)


def ack_deadline(value: int | None, *, exactly_once: bool) -> int:
    """Return the ack deadline in seconds. 0 and None stand for the default."""
    if not value:
        return EXACTLY_ONCE_ACK_DEADLINE_SECONDS if exactly_once else DEFAULT_ACK_DEADLINE_SECONDS
    low, high = ACK_DEADLINE_SECONDS
    if not low <= value <= high:
        raise InvalidArgument(
            f"Invalid ack deadline given (ack_deadline={value}). "
            f"The ack deadline must be between {low} and {high} seconds.",
            field="ackDeadlineSeconds",
        )
    return value


def retention(milliseconds: int) -> int:
    """Return the retention of a topic or a subscription."""
    low, high = RETENTION_MS
    if not low <= milliseconds <= high:
        raise InvalidArgument(
            "The value for message retention duration is out of bounds. "
            f"You passed {duration_text(milliseconds)} in the request, "
            f"but the value must be between {duration_text(low)} and {duration_text(high)}.",
            field="messageRetentionDuration",
        )
    return milliseconds


def default_retention(ttl_ms: int | None) -> int:
    """Return the default retention. It is never longer than the time that a subscription may be unused."""
    return DEFAULT_RETENTION_MS if ttl_ms is None else min(DEFAULT_RETENTION_MS, ttl_ms)


def expiration_ttl(milliseconds: int) -> int:
    if milliseconds < MINIMUM_TTL_MS:
        raise InvalidArgument(
            "The value for expiration duration is too small. "
            f"You passed {duration_text(milliseconds)} in the request, "
            f"but the minimum value is {duration_text(MINIMUM_TTL_MS)}.",
            field="expirationPolicy.ttl",
        )
    return milliseconds


def check_expiration(ttl_ms: int | None, *, retention_ms: int) -> None:
    """Raise InvalidArgument for a subscription that could expire while it has to keep its messages."""
    if ttl_ms is not None and ttl_ms < retention_ms:
        raise InvalidArgument(
            "The value for expiration duration is too small. "
            f"You passed {duration_text(ttl_ms)} in the request, but the message retention duration is "
            f"{duration_text(retention_ms)}, and the expiration duration must not be shorter.",
            field="expirationPolicy.ttl",
        )


def backoffs(minimum_ms: int | None, maximum_ms: int | None) -> tuple[int, int]:
    """Return the bounds of a retry policy in milliseconds, with the default for each that is None."""
    minimum = DEFAULT_BACKOFF_MS[0] if minimum_ms is None else minimum_ms
    maximum = DEFAULT_BACKOFF_MS[1] if maximum_ms is None else maximum_ms
    low, high = BACKOFF_MS
    for name, value in (("minimum", minimum), ("maximum", maximum)):
        if not low <= value <= high:
            raise InvalidArgument(
                f"The value for {name} backoff is out of bounds. You passed {duration_text(value)} in the request, "
                f"but the value must be between {duration_text(low)} and {duration_text(high)}.",
                field=f"retryPolicy.{name}Backoff",
            )
    if minimum > maximum:
        raise InvalidArgument(
            f"The minimum backoff ({duration_text(minimum)}) must not exceed "
            f"the maximum backoff ({duration_text(maximum)}).",
            field="retryPolicy.minimumBackoff",
        )
    return minimum, maximum


def delivery_attempts(value: int | None) -> int:
    if not value:
        return DEFAULT_DELIVERY_ATTEMPTS
    low, high = DELIVERY_ATTEMPTS
    if not low <= value <= high:
        raise InvalidArgument(
            f"The value for max delivery attempts is out of bounds. You passed {value} in the request, "
            f"but the value must be between {low} and {high}.",
            field="deadLetterPolicy.maxDeliveryAttempts",
        )
    return value


def labels(values: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (values or {}).items():
        if not key or not _is_label_text(key) or not _is_letter(key[0]):
            raise _bad_label("key", key, LABEL_KEY, key)
        if not _is_label_text(value):
            raise _bad_label("value", value, LABEL_VALUE, key)
    return dict(values or {})


def _bad_label(part: str, text: str, pattern: str, key: str) -> InvalidArgument:
    return InvalidArgument(
        f'Invalid label: {part} "{clipped(text)}" does not conform to regular expression "{pattern}".',
        field=f"labels.{clipped(key)}",
    )


def _is_letter(character: str) -> bool:
    return unicodedata.category(character) in ("Ll", "Lo")


def _is_label_text(text: str) -> bool:
    return len(text) <= 63 and all(
        character in "_-" or _is_letter(character) or unicodedata.category(character).startswith("N")
        for character in text
    )


def push_attributes(attributes: Mapping[str, str]) -> dict[str, str]:
    version = attributes.get("x-goog-version")
    if version is not None and version not in ENDPOINT_VERSIONS:
        raise InvalidArgument(
            f"Invalid push endpoint version given in push config (version={clipped(version)}).",
            field="pushConfig.attributes.x-goog-version",
        )
    for key, value in attributes.items():
        if not key:
            raise InvalidArgument("A push attribute's key must not be empty.", field="pushConfig.attributes")
        if key != "x-goog-version":
            _check_own_attribute(key, value)
    return dict(attributes)


def _check_own_attribute(key: str, value: str) -> None:
    field = f"pushConfig.attributes.{clipped(key)}"
    if key not in PUSHHUB_ATTRIBUTES:
        raise InvalidArgument(
            f'Unknown push attribute "{clipped(key)}". PushHub knows x-goog-version, {", ".join(PUSHHUB_ATTRIBUTES)}.',
            field=field,
        )
    bounds = PUSHHUB_ATTRIBUTES[key]
    if bounds is None:
        if value not in ("true", "false"):
            raise InvalidArgument(
                f'The push attribute "{key}" must be true or false. You passed "{clipped(value)}" in the request.',
                field=field,
            )
        return
    low, high = bounds
    pattern = r"\d{1,7}" if isinstance(low, int) else r"\d{1,7}(\.\d{1,3})?"
    if not re.fullmatch(pattern, value, re.ASCII) or not low <= float(value) <= high:
        raise InvalidArgument(
            f'The push attribute "{key}" must be a number between {low} and {high}. '
            f'You passed "{clipped(value)}" in the request.',
            field=field,
        )
