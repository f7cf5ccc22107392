"""How a method is called over gRPC: who calls, whether they may, what is answered; and errors always have a status.

Requests arrive as bytes, so that also what cannot be read is refused here. Django's database layer is synchronous: a
method runs in a thread of the pool, and whatever waits, waits in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import grpc
from django.conf import settings
from django.db import close_old_connections
from google.protobuf.message import Message
from rest_framework.exceptions import NotAuthenticated

from pushhub.errors import PermissionDenied
from pushhub.principals import Principal
from subscriptions import audit
from subscriptions.iam.callers import caller_from_authorization
from subscriptions.iam.methods import authorize, request_names
from subscriptions.quotas import administration_charge
from subscriptions.rpc import peers
from subscriptions.rpc.errors import Context, refuse
from subscriptions.rpc.protobuf import parsed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unary:
    """A method of one request and one answer, made in a thread."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[Any, Principal], Message]
    #: Completes a request before anybody is asked whether the caller may do it.
    complete: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class Direct:
    """As Unary, for what needs to know the call itself."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[Any, Call], Message]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A method of one request that may take its time: a coroutine, which gives way to others while it waits."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[Any, Call], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """A method in which both sides stream; it authorizes by itself, once it has the first request."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[AsyncIterator[Any], Call], AsyncIterator[Message]]


Method = Unary | Direct | Waiting | Bidirectional


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `method`, from its start to its status."""

    method: str
    authorization: str | None
    context: Context

    def seconds_left(self) -> float:
        """Until the caller gives up; very long where it named no deadline."""
        left = self.context.time_remaining()
        return 1e9 if left is None else max(left, 0.0)

    def caller(self) -> Principal:
        """Who calls; somebody who means to be somebody is never taken for the anonymous caller."""
        if self.authorization is not None:
            return caller_from_authorization(self.authorization)
        if settings.ANONYMOUS:
            return Principal(settings.ANONYMOUS)
        raise NotAuthenticated

    def authorized(self, request: Message) -> Principal:
        """The caller, who may call this method on what the request names; PermissionDenied otherwise."""
        caller = self.caller()
        audit.origin_refine(caller=caller.member)
        names = request_names(self.method, request)
        try:
            authorize(caller, self.method, names)
        except PermissionDenied:
            audit.denied(method=self.method, resource=next(iter(names.values()), ""))
            raise
        administration_charge(self.method, names)
        return caller

    def metadata(self, key: str) -> str:
        """The first value of a text key, or nothing."""
        return next((str(value) for name, value in self.context.invocation_metadata() or () if name == key), "")

    def origin(self) -> audit.Origin:
        """For the audit log; the caller is not known yet."""
        return audit.Origin(
            caller="", surface="grpc", address=peers.address_of(self.context.peer()), method=self.method
        )


def stopping() -> asyncio.Event:
    """Set when the server is asked to stop: whoever waits for messages should go elsewhere."""
    return _stopping_of(asyncio.get_running_loop())


@cache
def _stopping_of(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    return asyncio.Event()


def in_thread(work: Callable[..., T], *args: object) -> Awaitable[T]:
    """Run `work`, which may use the database, in a thread of the pool."""
    return asyncio.to_thread(_with_connections, work, *args)


def _with_connections(work: Callable[..., T], *args: object) -> T:
    close_old_connections()
    try:
        return work(*args)
    finally:
        close_old_connections()


def service_handler(service: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    """What the server asks for the methods of `service`; others are UNIMPLEMENTED."""
    handlers = {name: _handler(f"{service}.{name}", method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(service, handlers)


def _handler(name: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    if isinstance(method, (Unary, Direct)):
        return grpc.unary_unary_rpc_method_handler(_unary(name, method))
    if isinstance(method, Waiting):
        return grpc.unary_unary_rpc_method_handler(_waiting(name, method))
    return grpc.stream_stream_rpc_method_handler(_bidirectional(name, method))


def _call(name: str, context: Context) -> Call:
    found = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    return Call(name, str(found[0]) if found else None, context)


def _unary(name: str, method: Unary | Direct) -> Callable[[bytes, Context], Awaitable[bytes]]:
    def work(data: bytes, call: Call) -> bytes:
        request = parsed(method.request, data)
        if isinstance(method, Direct):
            call.authorized(request)
            return method.respond(request, call).SerializeToString()
        if method.complete is not None:
            method.complete(request)
        return method.respond(request, call.authorized(request)).SerializeToString()

    async def behave(data: bytes, context: Context) -> bytes:
        call = _call(name, context)
        try:
            with audit.origin(call.origin()):
                return await in_thread(work, data, call)
        except Exception as error:
            await refuse(context, error)

    return behave


def _waiting(name: str, method: Waiting) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def behave(data: bytes, context: Context) -> bytes:
        call = _call(name, context)
        try:
            with audit.origin(call.origin()):
                request = parsed(method.request, data)
                await in_thread(call.authorized, request)
                return (await method.respond(request, call)).SerializeToString()
        except Exception as error:
            await refuse(context, error)

    return behave


def _bidirectional(name: str, method: Bidirectional) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]:
    async def behave(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        async def read() -> AsyncIterator[Message]:
            async for data in requests:
                yield parsed(method.request, data)

        try:
            async for answer in method.respond(read(), _call(name, context)):
                yield answer.SerializeToString()
        except Exception as error:
            await refuse(context, error)

    return behave
