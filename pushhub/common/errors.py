"""The errors of PushHub, one class per canonical code. Each surface converts them in a single place."""

from __future__ import annotations

from typing import Any, ClassVar

#: Error texts show a caller's values up to this length.
SHOWN_CHARACTERS = 300


def describe(error: BaseException) -> str:
    """Return one log line: the kind of error and the end of its text, where Redis and the databases put the cause."""
    return f"{type(error).__name__}: {str(error).strip()[-SHOWN_CHARACTERS:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, where most libraries put the cause, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def clipped(text: str) -> str:
    """Return `text`, shortened so that a huge value doesn't become a huge response or log line."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


class PushHubError(Exception):
    """A request fails. `message` is for the caller, `field` is the path of the field at fault."""

    code: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls, *, code: str = "", http_status: int = 500) -> None:
        """A subclass without a code has that of its base."""
        if code:
            cls.code, cls.http_status = code, http_status

    def __init__(self, message: str, *, field: str = "", details: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.details = details if details is not None else []


def error_info(reason: str, *, domain: str = "googleapis.com", **more: object) -> list[dict[str, Any]]:
    """Return the details of an error that have a google.rpc.ErrorInfo alone."""
    return [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, **more}]


class InvalidArgument(PushHubError, code="INVALID_ARGUMENT", http_status=400):
    """A value is malformed, missing or out of bounds, whatever the state of the system is."""


class FailedPrecondition(PushHubError, code="FAILED_PRECONDITION", http_status=400):
    """The state of the resource doesn't allow the request."""


class Unauthenticated(PushHubError, code="UNAUTHENTICATED", http_status=401):
    """The credentials are missing or invalid."""


class PermissionDenied(PushHubError, code="PERMISSION_DENIED", http_status=403):
    """The caller is known and lacks a permission."""


class NotFound(PushHubError, code="NOT_FOUND", http_status=404):
    """The resource doesn't exist."""


class AlreadyExists(PushHubError, code="ALREADY_EXISTS", http_status=409):
    """The name is in use."""


class Aborted(PushHubError, code="ABORTED", http_status=409):
    """Another caller changed the resource at the same time."""


class ResourceExhausted(PushHubError, code="RESOURCE_EXHAUSTED", http_status=429):
    """A quota is exceeded."""


class Internal(PushHubError, code="INTERNAL", http_status=500):
    """PushHub itself failed."""


class Unimplemented(PushHubError, code="UNIMPLEMENTED", http_status=501):
    """PushHub doesn't have this part of the API."""


class Unavailable(PushHubError, code="UNAVAILABLE", http_status=503):
    """The service can't answer now. The caller may try again."""


class DeadlineExceeded(PushHubError, code="DEADLINE_EXCEEDED", http_status=504):
    """The request took too long."""
