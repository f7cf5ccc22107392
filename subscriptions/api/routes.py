"""How a function becomes a method of the API, at its address.

A module of the API has a function per method, which is the service where nothing is read or shown. REST calls it by its
address, and gRPC by the tables in `rpc/`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from django.urls import URLPattern, re_path
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.protojson import Message, snake_case
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, message
from subscriptions.paging import Page
from subscriptions.resources.table import drop_falsy

Handler = TypeVar("Handler", bound=Callable[..., Any])

PROJECT = "v1/projects/{project}"
TOPIC = PROJECT + "/topics/{topic}"
SUBSCRIPTION = PROJECT + "/subscriptions/{subscription}"

#: The addresses whose queries are checked. Other services have parameters that PushHub does without.
CHECKED = tuple(f"{PROJECT}/{collection}" for collection in ("topics", "subscriptions", "snapshots", "schemas"))
#: The query parameters of every method of Google's, besides those that begin with a dollar. Tokens don't come here.
STANDARD = frozenset({"alt", "callback", "fields", "key", "prettyPrint", "quotaUser", "upload_protocol", "uploadType"})

#: The headings of operations that are not called like their collection, by the beginning of their ids.
TAGS = {
    "serviceAccounts_keys": "service account keys",
    "serviceAccounts": "service accounts",
    "timeSeries": "metrics",
    "metricDescriptors": "metrics",
    "projects_validateMessageTransform": "messageTransforms",
    "projects_testMessageTransforms": "messageTransforms",
}
#: A segment of an address, such as `{topic}`, or `{metric:.+}` with an expression of its own.
SEGMENT = re.compile(r"\{(\w+)(?::(.+?))?\}")

#: What a function may take beside the segments of its address, each from the request.
TAKEN: Mapping[str, Callable[[ApiView, Request, Mapping[str, str]], Any]] = {
    "request": lambda view, request, segments: request,
    "body": lambda view, request, segments: request.data,
    "query": lambda view, request, segments: request.query_params,
    "page": lambda view, request, segments: Page.read(request.query_params),
    "caller": lambda view, request, segments: caller_of(request),
    "name": lambda view, request, segments: view.resource_name(**segments),
}


@dataclass(frozen=True, slots=True)
class Route:
    """A function at an address, as a method of a view."""

    verb: str
    address: str
    answer: Callable[..., Response]
    base: type[ApiView]


def serve(
    verb: str,
    address: str,
    rpc: str,
    *,
    operation_id: str | None = None,
    takes: Any = None,
    gives: Any = EMPTY,
    parameters: Sequence[OpenApiParameter] = (),
    tag: str = "",
    base: type[ApiView] = ApiView,
) -> Callable[[Handler], Handler]:
    """Return a decorator that serves a function at an address, which is written as Google writes it.

    `rpc` is the RPC that it stands for, which iam/methods.py maps to permissions. After a service with a dot at its end
    goes the name of the function, as in `google.pubsub.v1.Publisher.GetTopic`. The rest describes it in the OpenAPI
    document, unless `operation_id` is empty: `takes` and `gives` are messages, or parts of the document, and `tag` is
    its heading, by default the collection. Without `operation_id`, it follows from the address.

    The function gets what its parameters name: segments of the address, and what is in TAKEN; one that takes a page has
    the parameters of pages. It returns the body of the response, None for an empty one, or a response.
    """
    operation = _operation_of(verb, address) if operation_id is None else operation_id
    body_fields = [*takes.fields] if isinstance(takes, Message) else []
    has_mask = verb == "PATCH" and "updateMask" in body_fields

    def decorate(handler: Handler) -> Handler:
        wanted = list(inspect.signature(handler).parameters)
        # The form of a body that the function doesn't read: what it lacks is refused.
        checked_body = takes if isinstance(takes, Message) and {"body", "request"}.isdisjoint(wanted) else None
        described_parameters = [*(PAGING if "page" in wanted else ()), *parameters]
        own = [*(parameter.name for parameter in described_parameters), *body_fields]
        known = STANDARD.union(own, map(snake_case, own))

        @functools.wraps(handler)
        def answer(view: ApiView, request: Request, **segments: str) -> Response:
            if address.startswith(CHECKED):
                _check_query(request.query_params, known)
            given = {word: TAKEN[word](view, request, segments) if word in TAKEN else segments[word] for word in wanted}
            if checked_body is not None:
                checked_body.read(request.data)
            if has_mask:
                given["body"] = _with_mask(given["body"], request.query_params)
            answered = handler(**given)
            return answered if isinstance(answered, Response) else Response({} if answered is None else answered)

        called = "".join(word.capitalize() for word in handler.__name__.split("_"))
        answer.rpc = rpc + called if rpc.endswith(".") else rpc  # type: ignore[attr-defined]
        described = extend_schema(
            operation_id=operation,
            tags=[tag or _tag_of(operation)],
            parameters=described_parameters,
            request=body(takes) if isinstance(takes, Message) else takes,
            responses=message(gives) if isinstance(gives, Message) else gives,
            exclude=not operation,
        )(answer)
        vars(handler).setdefault("routes", []).append(Route(verb, address, described, base))
        return handler

    return decorate


def _check_query(query: Iterable[str], known: Collection[str]) -> None:
    """Raise InvalidArgument for a parameter that the method doesn't have, which may be a misspelt one."""
    for name in query:
        if name not in known and not name.startswith("$"):
            raise InvalidArgument(
                f'Invalid JSON payload received. Unknown name "{clipped(name)}": Cannot bind query parameter. Field '
                f"'{clipped(name)}' could not be found in request message.",
                field=clipped(name),
            )


def _with_mask(body: Any, query: Mapping[str, str]) -> Any:
    """Return the body of an update. Without a mask it gets the query's, where Terraform's provider has it."""
    mask = query.get("updateMask") or query.get("update_mask")
    if not mask or not isinstance(body, dict) or not body.keys().isdisjoint(("updateMask", "update_mask")):
        return body
    return {**body, "updateMask": mask}


def _operation_of(verb: str, address: str) -> str:
    """Return the id of an operation as Google names it, such as `topics_publish` or `serviceAccounts_keys_list`."""
    resource, _, method = SEGMENT.sub(r"{\1}", address).partition(":")
    _, *segments = resource.split("/")
    collections = [segment for segment in segments if not segment.startswith("{")]
    if len(collections) > 1:
        collections.remove("projects")
    get = "get" if segments[-1].startswith("{") else "list"
    words = {"GET": get, "PUT": "create", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
    return "_".join([*collections, method or words[verb]])


def _tag_of(operation: str) -> str:
    """Return the heading of an operation in the OpenAPI document."""
    return next((tag for start, tag in TAGS.items() if operation.startswith(start)), operation.partition("_")[0])


def list_patterns(*modules: ModuleType) -> list[URLPattern]:
    """Return the addresses of the functions of these modules.

    Those that end with a verb, as in `topics/t:publish`, come first: the last segment of others may contain a colon.
    """
    views: dict[str, list[Route]] = {}
    for module in modules:
        for function in filter(inspect.isfunction, vars(module).values()):
            for route in getattr(function, "routes", ()):
                views.setdefault(route.address, []).append(route)
    addresses = sorted(views, key=lambda address: not re.search(r":\w+$", address))
    return [re_path(_expression(address), _view(views[address]).as_view()) for address in addresses]


def _expression(address: str) -> str:
    pattern = SEGMENT.sub(lambda match: f"(?P<{match[1]}>{match[2] or '[^/]+'})", address)
    return f"^{pattern}$"


def _view(routes: Sequence[Route]) -> type[ApiView]:
    return type(routes[0].answer.__name__, (routes[0].base,), {route.verb.lower(): route.answer for route in routes})


def listed(collection: str, items: list[Any], token: str) -> dict[str, object]:
    """Return the response of a list, in which empty fields are left out."""
    return drop_falsy({collection: items, "nextPageToken": token})
