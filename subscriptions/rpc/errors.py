"""Errors in gRPC: the only place where a canonical code becomes a status with its details."""

from __future__ import annotations

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

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


async def refuse(context: Context, error: Exception) -> NoReturn:
    """End the call with the status of any exception."""
    known = known_error(error)
    await context.abort(grpc.StatusCode[known.code], known.message, trailing_metadata(known))
    raise AssertionError("abort() raises")


def trailing_metadata(error: PushHubError) -> tuple[tuple[str, bytes], ...]:
    """Return the google.rpc.Status of an error, with its details if it has any.

    With exactly-once delivery, Google's Python client looks for it: it reports an ack without one as confirmed.
    """
    details = [json_format.ParseDict(detail, any_pb2.Any()) for detail in error_details(error)]
    number = grpc.StatusCode[error.code].value[0]
    status = status_pb2.Status(code=number, message=error.message, details=details)
    return ((DETAILS_KEY, status.SerializeToString()),)
