"""Request bodies: JSON of a bounded size, optionally gzipped."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from rest_framework.parsers import BaseParser

from pushhub.common.elements import MOST_ELEMENTS, has_few_elements
from pushhub.common.errors import InvalidArgument

#: zlib's window bits for gzip with the largest window.
GZIP_WINDOW = 31
READ_BYTES = 64 * 1024


class ProtoJSONParser(BaseParser):
    """Reads JSON whatever the declared content type is. Never holds more than the limit, before or after inflating."""

    media_type = "*/*"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        request = (parser_context or {})["request"]
        body = read_body(stream, request.META)
        if not body.strip():
            return {}
        if not has_few_elements(body):
            raise InvalidArgument(f"The request has more than {MOST_ELEMENTS} elements.", field="body")
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidArgument(f"Invalid JSON payload received. {error}", field="body") from None


def read_body(stream: IO[Any], meta: Mapping[str, Any], *, limit: int | None = None) -> bytes:
    """Return the body, inflated if necessary. A body whose length is declared is refused before it is read."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE if limit is None else limit
    if _content_length(meta) > limit:
        raise too_large(limit)
    encoding = meta.get("HTTP_CONTENT_ENCODING", "").strip().lower()
    if encoding in ("", "identity"):
        return _bounded(stream, limit)
    if encoding in ("gzip", "x-gzip"):
        return inflated(_bounded(stream, limit), limit)
    raise InvalidArgument("The body's Content-Encoding is not supported: use gzip or none.", field="body")


def too_large(limit: int) -> InvalidArgument:
    return InvalidArgument(f"Request payload size exceeds the limit: {limit} bytes.", field="body")


def inflated(body: bytes, limit: int) -> bytes:
    """Return the content of a gzip body. Stops at the limit, however much a small body would inflate to."""
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        content = inflater.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidArgument("The body is not valid gzip.", field="body") from None
    if len(content) > limit:
        raise too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise InvalidArgument("The body is not valid gzip.", field="body")
    return content


def _content_length(meta: Mapping[str, Any]) -> int:
    try:
        return int(meta.get("CONTENT_LENGTH") or 0)
    except ValueError:
        raise InvalidArgument("The Content-Length is not a number.", field="body") from None


def _bounded(stream: IO[Any], limit: int) -> bytes:
    chunks = []
    size = 0
    try:
        while chunk := stream.read(READ_BYTES):
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            chunks.append(chunk)
    except OSError:
        raise InvalidArgument("The body ended early.", field="body") from None
    return b"".join(chunks)
