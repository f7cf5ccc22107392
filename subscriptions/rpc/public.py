"""Limits for the services that need no credentials: health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import grpc

from subscriptions.rpc.calls import address_of, read_request, read_stream
from subscriptions.rpc.errors import Context, refuse
from subscriptions.rpc.slots import Slots

#: Enough for the name of a service or of a symbol.
REQUEST_BYTES = 4096
#: How many requests of one address are read at once, and how many may wait.
ADDRESS_CALLS = 2
WAITING_CALLS = 100
#: How many streams of one address are open at once: a connection of the gRPC server has no more either.
ADDRESS_STREAMS = 256


class PublicServices(grpc.aio.ServerInterceptor):
    """Limits the requests that gRPC would parse itself. PushHub's own methods get theirs as bytes."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        handler = await continuation(handler_call_details)
        return handler if handler is None or handler.request_deserializer is None else _bounded(handler)


def _bounded(handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
    if handler.unary_unary:
        return grpc.stream_unary_rpc_method_handler(
            _once(handler, handler.unary_unary), response_serializer=handler.response_serializer
        )
    if handler.unary_stream:
        return grpc.stream_stream_rpc_method_handler(
            _once(handler, handler.unary_stream), response_serializer=handler.response_serializer
        )
    return grpc.stream_stream_rpc_method_handler(_stream(handler), response_serializer=handler.response_serializer)


def _once(handler: Any, respond: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
    async def behave(_: Any, context: Context) -> Any:
        loop, address = asyncio.get_running_loop(), address_of(context)
        async with AsyncExitStack() as open_stream:
            try:
                if handler.unary_stream:
                    await open_stream.enter_async_context(_streams(loop).held(address))
                async with _slots(loop).held(address):
                    data = await read_request(context, most_bytes=REQUEST_BYTES)
            except Exception as error:
                await refuse(context, error)
            return await respond(handler.request_deserializer(data), context)

    return behave


def _stream(handler: Any) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[Any]]:
    async def behave(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Any]:
        async def read() -> AsyncIterator[Any]:
            async for data in read_stream(requests, most_bytes=REQUEST_BYTES):
                yield handler.request_deserializer(data)

        try:
            async with _streams(asyncio.get_running_loop()).held(address_of(context)):
                async for answer in handler.stream_stream(read(), context):
                    yield answer
        except Exception as error:
            await refuse(context, error)

    return behave


@cache
def _slots(loop: asyncio.AbstractEventLoop) -> Slots:
    return Slots(ADDRESS_CALLS, most_waiting=WAITING_CALLS)


@cache
def _streams(loop: asyncio.AbstractEventLoop) -> Slots:
    return Slots(ADDRESS_STREAMS, most_waiting=0)
