"""How gRPC methods are called: authentication, permissions, the response, and a status for every error.

A call is authenticated by its metadata before its request is read. gRPC reads, inflates and parses the request of a
unary method before it calls the method's handler, so every method is served as one that takes a stream, which is the
same on the wire: then the handler reads the request, as bytes, when it chooses to.

Django's database layer is synchronous, so each method runs in a thread of the pool, where callers take turns. Waiting
happens in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import grpc
from django.conf import settings
from django.db import close_old_connections, connections
from google.protobuf.message import Message
from rest_framework.exceptions import NotAuthenticated

from pushhub.common import peers
from pushhub.common.errors import DeadlineExceeded, InvalidArgument, PermissionDenied
from pushhub.common.principals import Principal
from pushhub.common.tenantpool import MOST_ASIDE, TenantPool
from pushhub.common.wire import check_fields
from subscriptions import audit
from subscriptions.iam.methods import authorize, request_names
from subscriptions.identity.callers import caller_from_authorization, recent_caller
from subscriptions.quotas import charge_administration
from subscriptions.rpc.errors import Context, refuse
from subscriptions.rpc.protobuf import parsed
from subscriptions.rpc.slots import Slots

T = TypeVar("T")

#: The largest inflated request of a method that doesn't allow more.
REQUEST_BYTES = 1024 * 1024
#: The largest publish request, with its framing.
LARGE_REQUEST_BYTES = 11 * 1024 * 1024
#: Of requests above this size, PushHub works on LARGE_CALLS per caller at once.
SMALL_REQUEST_BYTES = 256 * 1024
LARGE_CALLS = 2
#: Requests up to this size may be parsed in the event loop.
QUICK_REQUEST_BYTES = 64 * 1024
#: How many quick calls of one caller are under way at once. Such a call keeps no thread while it waits for its answer,
#: so this only bounds the memory of their requests.
QUICK_CALLS = 128
#: How many calls of one caller may wait for other calls of this caller.
WAITING_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class Unary:
    """A method with one request and one response, which runs in a thread."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[Any, Call], Message]
    #: Completes a request before the permission check.
    complete: Callable[[Any], None] | None = None
    most_bytes: int = REQUEST_BYTES
    #: Answers small requests in the event loop, which it authorizes by itself; None for those that `respond` has to
    #: answer.
    quick: Quick | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A method with one request that may take long: a coroutine, so that it blocks no thread while it waits."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[Any, Call], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """A method that streams in both directions. It checks permissions itself, after the first request."""

    request: type[Message]
    answer: type[Message]
    respond: Callable[[AsyncIterator[Any], Call], AsyncIterator[Message]]


#: The type of `Unary.quick`.
Quick = Callable[[Any, "Call"], Awaitable[Message | None]]
Method = Unary | Waiting | Bidirectional


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `method`, from its start to its status."""

    method: str
    authorization: str | None
    context: Context

    def seconds_left(self) -> float:
        """Return the time until the caller's deadline; a very long time if there is none."""
        left = self.context.time_remaining()
        return 1e9 if left is None else max(left, 0.0)

    def caller(self) -> Principal:
        """Return the caller. A call with credentials never falls back to the anonymous principal."""
        if self.authorization is not None:
            return caller_from_authorization(self.authorization)
        if settings.ANONYMOUS:
            return Principal(settings.ANONYMOUS)
        raise NotAuthenticated

    async def authenticated(self) -> Principal:
        """Return the caller. If that needs a query, it runs in a thread."""
        known = recent_caller(self.authorization) if self.authorization is not None else None
        if known is not None or self.authorization is None:
            return known or self.caller()
        return await in_thread(self.caller)

    def authorized(self, request: Message) -> Principal:
        """Return the caller, who may call this method on the resources in the request; else PermissionDenied."""
        caller = self.caller()
        audit.refine_origin(caller=caller.member)
        names = request_names(self.method, request)
        try:
            authorize(caller, self.method, names)
        except PermissionDenied:
            audit.denied(method=self.method, resource=next(iter(names.values()), ""))
            raise
        charge_administration(self.method, names)
        return caller

    def metadata(self, key: str) -> str:
        """Return the value of a text key, or an empty string."""
        return _metadata(self.context, key) or ""

    def origin(self) -> audit.Origin:
        """Return the origin for the audit log, before the caller is known."""
        return audit.Origin(caller="", surface="grpc", address=address_of(self.context), method=self.method)


def address_of(context: Context) -> str:
    """Return the address of a call's client, also behind a proxy."""
    address = peers.address_of(context.peer())
    if not settings.BEHIND_PROXY:
        return address
    return peers.last_forwarded(_metadata(context, "x-forwarded-for") or "") or address


def stopping() -> asyncio.Event:
    """Return the event that is set when the server stops, so that waiting calls can end."""
    return _stopping_of(asyncio.get_running_loop())


@cache
def _stopping_of(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    return asyncio.Event()


def in_thread(work: Callable[..., T], *args: object, **named: object) -> Awaitable[T]:
    """Run `work`, which may use the database, in a thread of the pool, when it is the caller's turn."""
    call = partial(copy_context().run, _with_connections, partial(work, *args, **named))
    return asyncio.wrap_future(threads_of(asyncio.get_running_loop()).submit(_tenant.get(), call))


@cache
def threads_of(loop: asyncio.AbstractEventLoop) -> TenantPool:
    """Return the threads of a server. Whoever runs the server closes them."""
    return TenantPool(
        "grpc",
        settings.GRPC_THREADS,
        most=settings.GRPC_CALLER_CALLS,
        most_waiting=WAITING_CALLS,
        most_aside=MOST_ASIDE,
        at_end=connections.close_all,
    )


#: Whose turn a call takes: its caller, or its address as long as the caller isn't known.
_tenant: ContextVar[str] = ContextVar("tenant")


def _with_connections(work: Callable[[], T]) -> T:
    close_old_connections()
    try:
        return work()
    finally:
        close_old_connections()


def service_handler(service: str, methods: Mapping[str, Method]) -> grpc.GenericRpcHandler:
    """Return the handler for the methods of `service`. gRPC answers others with UNIMPLEMENTED."""
    handlers = {name: _handler(f"{service}.{name}", method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(service, handlers)


def _handler(name: str, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
    if isinstance(method, Bidirectional):
        return grpc.stream_stream_rpc_method_handler(_bidirectional(name, method))
    return grpc.stream_unary_rpc_method_handler(
        _waiting(name, method) if isinstance(method, Waiting) else _unary(name, method)
    )


def _call(name: str, context: Context) -> Call:
    return Call(name, _metadata(context, "authorization"), context)


def _metadata(context: Context, key: str) -> str | None:
    """Return the value of a text key, or None. Those of a repeated key are joined, as those of a header in REST are."""
    values = [str(value) for name, value in context.invocation_metadata() or () if name == key]
    return ",".join(values) if values else None


async def _caller(call: Call) -> str:
    """Authenticate the call and return its caller, whose turn it takes from now on."""
    _tenant.set(f"client {call.origin().address}")
    member = (await call.authenticated()).member
    _tenant.set(member)
    return member


@cache
def _slots_of(loop: asyncio.AbstractEventLoop, kind: str) -> Slots:
    most = {"any": settings.GRPC_CALLER_CALLS, "quick": QUICK_CALLS, "large": LARGE_CALLS}[kind]
    return Slots(most, most_waiting=WAITING_CALLS)


def _slots(kind: str) -> Slots:
    """Return how many calls of a kind each caller has under way at once."""
    return _slots_of(asyncio.get_running_loop(), kind)


async def read_stream(requests: AsyncIterator[bytes], *, most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the requests of a stream. The first one must arrive as soon as the head of a REST request."""
    try:
        async with asyncio.timeout(settings.HEAD_SECONDS):
            data = await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded("The first request of the stream did not arrive in time.") from None
    while data is not None:
        check_size(data, most_bytes)
        yield data
        data = await anext(requests, None)


async def read_request(context: Context, *, most_bytes: int) -> bytes:
    """Read the request of a unary call. gRPC's own limit is that of the method with the largest requests."""
    try:
        async with asyncio.timeout(settings.BODY_SECONDS):
            data = await context.read()
    except TimeoutError:
        raise DeadlineExceeded("The request did not arrive in time.") from None
    if not isinstance(data, bytes):
        raise InvalidArgument("The call has no request.")
    check_size(data, most_bytes)
    return data


def check_size(data: bytes, most_bytes: int) -> None:
    if len(data) > most_bytes:
        raise InvalidArgument(f"Request payload size exceeds the limit: {most_bytes} bytes.")


def _parsed(kind: type[Message], data: bytes) -> Message:
    check_fields(kind, data)
    return parsed(kind, data)


def _unary(name: str, method: Unary) -> Callable[[Any, Context], Awaitable[bytes]]:
    def work(data: bytes, call: Call) -> bytes:
        request = _parsed(method.request, data)
        if method.complete is not None:
            method.complete(request)
        call.authorized(request)
        return method.respond(request, call).SerializeToString()

    async def read(context: Context) -> bytes:
        return await read_request(context, most_bytes=method.most_bytes)

    async def answer(data: bytes, call: Call, caller: str) -> bytes:
        if len(data) <= SMALL_REQUEST_BYTES:
            return await in_thread(work, data, call)
        async with _slots("large").held(caller):
            return await in_thread(work, data, call)

    async def answer_quickly(quick: Quick, call: Call, caller: str) -> bytes:
        """Answer without a slot for a thread, if possible. Calls wait for a slot before their requests are read."""
        async with _slots("quick").held(caller):
            async with _slots("any").held(caller):
                data = await read(call.context)
                if len(data) > QUICK_REQUEST_BYTES:
                    return await answer(data, call, caller)
            message = await quick(_parsed(method.request, data), call)
            if message is not None:
                return message.SerializeToString()
            async with _slots("any").held(caller):
                return await answer(data, call, caller)

    async def behave(_: Any, context: Context) -> bytes:
        call = _call(name, context)
        try:
            with audit.origin(call.origin()):
                caller = await _caller(call)
                if method.quick is not None:
                    return await answer_quickly(method.quick, call, caller)
                async with _slots("any").held(caller):
                    return await answer(await read(context), call, caller)
        except Exception as error:
            await refuse(context, error)

    return behave


def _waiting(name: str, method: Waiting) -> Callable[[Any, Context], Awaitable[bytes]]:
    async def behave(_: Any, context: Context) -> bytes:
        call = _call(name, context)
        try:
            with audit.origin(call.origin()):
                async with _slots("any").held(await _caller(call)):
                    request = _parsed(method.request, await read_request(context, most_bytes=REQUEST_BYTES))
                    await in_thread(call.authorized, request)
                return (await method.respond(request, call)).SerializeToString()
        except Exception as error:
            await refuse(context, error)

    return behave


def _bidirectional(name: str, method: Bidirectional) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[bytes]]:
    async def behave(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        call = _call(name, context)

        async def read() -> AsyncIterator[Message]:
            async for data in read_stream(requests, most_bytes=REQUEST_BYTES):
                yield _parsed(method.request, data)

        try:
            await _caller(call)
            async for answer in method.respond(read(), call):
                yield answer.SerializeToString()
        except Exception as error:
            await refuse(context, error)

    return behave
