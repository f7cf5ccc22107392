"""Errors in gRPC: the only place where a canonical code becomes a status with its details."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf import any_pb2, json_format
from google.rpc import error_details_pb2, status_pb2

from pushhub.common.errors import PushHubError
from subscriptions.api.errors import error_details, known_error

#: The metadata key of a google.rpc.Status, where clients expect it.
DETAILS_KEY = "grpc-status-details-bin"
#: The types of details. Importing them registers their names in the descriptor pool.
KINDS = (error_details_pb2.BadRequest, error_details_pb2.ErrorInfo)

#: Google's clients take 4 MB of metadata, which is more than all ack ids of a request need. Only the Python client's
#: channel to an emulator, which has no credentials, takes 8 KiB, of which base64 leaves three quarters.
METADATA_BYTES = 4_000

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def refuse(context: Context, error: Exception) -> NoReturn:
    """End the call with the status of any exception."""
    known = known_error(error)
    await context.abort(grpc.StatusCode[known.code], known.message, trailing_metadata(known, context))
    raise AssertionError("abort() raises")


def trailing_metadata(error: PushHubError, context: Context) -> tuple[tuple[str, bytes], ...]:
    """Return the google.rpc.Status of an error, with its details if it has any.

    With exactly-once delivery, Google's Python client looks for it: it reports an ack without one as confirmed.
    """
    has_credentials = any(key == "authorization" for key, _ in context.invocation_metadata() or ())
    shown = error_details(error) if has_credentials else [_clipped(detail) for detail in error_details(error)]
    details = [json_format.ParseDict(detail, any_pb2.Any()) for detail in shown]
    number = grpc.StatusCode[error.code].value[0]
    status = status_pb2.Status(code=number, message=error.message, details=details)
    return ((DETAILS_KEY, status.SerializeToString()),)


def _clipped(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return a detail with the first entries of its metadata: of an error with many lost leases, some.

    Clients take the acks of the others as failed for another reason, but for Java's, which takes them as confirmed.
    """
    metadata = detail.get("metadata", {})
    sizes = accumulate(len(key) + len(value) for key, value in metadata.items())
    kept = {key: metadata[key] for key, size in zip(metadata, sizes, strict=True) if size <= METADATA_BYTES}
    return {**detail, "metadata": kept} if kept else dict(detail)
