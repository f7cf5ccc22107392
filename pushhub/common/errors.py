"""The errors of PushHub, one class per canonical code. Each surface turns them into its own form in one place.

PushHubError
├── InvalidArgument      400   ├── NotFound            404   ├── Internal       500
├── FailedPrecondition   400   ├── AlreadyExists       409   ├── Unimplemented  501
├── OutOfRange           400   ├── Aborted             409   ├── Unavailable    503
├── Unauthenticated      401   └── ResourceExhausted   429   └── DeadlineExceeded 504
└── PermissionDenied     403
"""

from __future__ import annotations

from typing import Any, ClassVar

#: What a caller sent is shown in an error's text up to this many characters.
SHOWN_CHARACTERS = 300


def describe(error: BaseException) -> str:
    """One line for the log: the kind of error and the end of its text, where Redis and the databases put the cause."""
    return f"{type(error).__name__}: {str(error).strip()[-SHOWN_CHARACTERS:]}"


def clipped(text: str) -> str:
    """`text`, cut short, so that a huge value cannot become a huge answer or log line."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


class PushHubError(Exception):
    """A request that cannot be carried out; `message` is for the caller, `field` the path of what is at fault."""

    code: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, field: str = "", details: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.details = details if details is not None else []


class InvalidArgument(PushHubError):
    """Malformed, missing or out of bounds, whatever state the system is in."""

    code = "INVALID_ARGUMENT"
    http_status = 400


class FailedPrecondition(PushHubError):
    """The state of the resource forbids it."""

    code = "FAILED_PRECONDITION"
    http_status = 400


class OutOfRange(PushHubError):
    """Past the end of what there is."""

    code = "OUT_OF_RANGE"
    http_status = 400


class Unauthenticated(PushHubError):
    """No credentials, or bad ones."""

    code = "UNAUTHENTICATED"
    http_status = 401


class PermissionDenied(PushHubError):
    """The caller is known and may not do it."""

    code = "PERMISSION_DENIED"
    http_status = 403


class NotFound(PushHubError):
    """No such resource."""

    code = "NOT_FOUND"
    http_status = 404


class AlreadyExists(PushHubError):
    """The name is taken."""

    code = "ALREADY_EXISTS"
    http_status = 409


class Aborted(PushHubError):
    """Someone else changed it meanwhile."""

    code = "ABORTED"
    http_status = 409


class ResourceExhausted(PushHubError):
    """Over a quota."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 429


class Internal(PushHubError):
    """Our fault."""

    code = "INTERNAL"
    http_status = 500


class Unimplemented(PushHubError):
    """Part of the API that PushHub does not have."""

    code = "UNIMPLEMENTED"
    http_status = 501


class Unavailable(PushHubError):
    """Cannot be done right now; the caller may try again."""

    code = "UNAVAILABLE"
    http_status = 503


class DeadlineExceeded(PushHubError):
    """It took too long."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504
