"""gRPC methods that the functions of the API answer, which REST serves at addresses."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from google.protobuf import descriptor_pool, empty_pb2, message_factory
from google.protobuf.message import Message

from pushhub.common import protojson
from pushhub.common.pubsubtypes import POOL
from subscriptions.iam.methods import METHODS
from subscriptions.paging import Page
from subscriptions.resources.masks import mask_of_snake_paths
from subscriptions.rpc.calls import REQUEST_BYTES, Call, Unary
from subscriptions.rpc.protobuf import to_dict, to_message

Body = Callable[[Any], dict[str, Any]]


def answered_by(
    function: Callable[..., Any],
    *,
    request: type[Message] | None = None,
    answer: type[Message] | None = None,
    name: str = "",
    body: Body = to_dict,
    complete: Callable[[Any], None] | None = None,
    most_bytes: int = REQUEST_BYTES,
) -> tuple[str, Unary]:
    """Return the name of the gRPC method that a function of the API answers, and the method.

    By Google's rule a method `Get` takes a GetRequest and gives a GetResponse, or else is given as `request` and
    `answer`; without either, its answer is empty. `name` is the path of the resource's name in the request, by default
    that of the method's first permission. `body` makes of the request what REST has in its body.
    """
    wanted = inspect.signature(function).parameters
    rpc: str = function.routes[0].answer.rpc  # type: ignore[attr-defined]
    service, _, method = rpc.rpartition(".")
    package = service.rpartition(".")[0]
    name_of = attrgetter(name or METHODS[rpc][0].source)
    answer_type = answer or _find_type(f"{package}.{method}Response") or empty_pb2.Empty
    request_type = request or _find_type(f"{package}.{method}Request")
    assert request_type is not None, rpc
    given: Mapping[str, Callable[[Any, Call], Any]] = {
        "name": lambda request, call: name_of(request),
        "body": lambda request, call: body(request),
        "query": lambda request, call: _query(request),
        "page": lambda request, call: Page.read(_query(request)),
        "caller": lambda request, call: call.caller(),
    }

    def respond(request: Any, call: Call) -> Message:
        answered = function(**{word: given[word](request, call) for word in wanted})
        return to_message(answered or {}, answer_type)

    return method, Unary(request_type, answer_type, respond, complete=complete, most_bytes=most_bytes)


def part(field: str) -> Body:
    """Return what makes a body of one field of a request."""
    return lambda request: to_dict(getattr(request, field))


def update(field: str, kind: protojson.Message) -> Body:
    """Return what makes a body of an update request for the resource in `field`. gRPC's mask has snake_case paths."""
    return lambda request: {
        field: to_dict(getattr(request, field)),
        "updateMask": mask_of_snake_paths(request.update_mask.paths, kind),
    }


def _query(request: Any) -> dict[str, str]:
    """Return the texts and numbers of a request, as REST has them in the query."""
    return {field: str(value) for field, value in to_dict(request).items() if isinstance(value, (str, int))}


def _find_type(full_name: str) -> type[Message] | None:
    for pool in (POOL, descriptor_pool.Default()):
        with contextlib.suppress(KeyError):
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
    return None
