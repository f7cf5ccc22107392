"""Traces with OpenTelemetry: the way of a message whose publisher traces it, from publish to each POST.

A client with OpenTelemetry puts the context of its trace into an attribute of the message. PushHub adds spans to that
trace: `publish`, `wait` until the first attempt, and `push` for each attempt, whose span is the parent of the
endpoint's spans. Messages without such an attribute, or with an unsampled trace, have no spans.

A span is created when it has ended, from times that are recorded anyway. Its id is derived from the message, so the
processes needn't exchange it. OpenTelemetry is imported only if the standard environment variables ask for OTLP.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HTTP_PROTOBUF = "http/protobuf"
SAMPLED = 1


class TraceContext(NamedTuple):
    """A trace, and the span in it that is the parent of the next one."""

    trace_id: int
    span_id: int

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{SAMPLED:02x}"


@dataclass(frozen=True, slots=True)
class Span:
    """A span that has ended. Times are in seconds since 1970."""

    name: str
    #: One of INTERNAL, SERVER, CLIENT.
    kind: str
    context: TraceContext
    parent: TraceContext
    started: float
    ended: float
    attributes: Mapping[str, str | int | float]
    #: What went wrong; empty for a span without an error.
    error: str = ""


@cache
def is_on() -> bool:
    """Return whether the environment asks for spans, and the exporter is installed."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporters = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if "otlp" not in exporters if exporters else not any(os.environ.get(name) for name in ENDPOINTS):
        return False
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), HTTP_PROTOBUF)
    if protocol != HTTP_PROTOBUF:
        logger.warning(
            "no traces are exported: the OTLP protocol is %s, and only %s is supported", protocol, HTTP_PROTOBUF
        )
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError:
        logger.warning("no traces are exported: install pushhub[tracing]")
        return False
    return True


def parse_context(traceparent: str) -> TraceContext | None:
    """Return the context of a valid `traceparent`, or None if its sender doesn't sample the trace."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return TraceContext(int(trace_id, 16), int(span_id, 16)) if int(flags, 16) & SAMPLED else None


def context_of(trace: TraceContext, *parts: str | int) -> TraceContext:
    """Return the context of one of PushHub's own spans, which `parts` identify."""
    digest = hashlib.blake2s("|".join(map(str, parts)).encode(), digest_size=8, person=b"span").digest()
    return TraceContext(trace.trace_id, int.from_bytes(digest) or 1)


def publish_context(trace: TraceContext, message_id: int) -> TraceContext:
    """Return the context of the span `publish`, the parent of PushHub's other spans."""
    return context_of(trace, "publish", message_id)


def attempt_context(trace: TraceContext, message_id: int, subscription_id: int, attempt: int) -> TraceContext:
    """Return the context of the span `push` of an attempt, which the endpoint gets as its parent."""
    return context_of(trace, "push", message_id, subscription_id, attempt)


def add_spans(spans: Iterable[Span]) -> None:
    """Hand spans to the exporter, which sends them in batches from a thread of its own. Never block, never raise."""
    try:
        _add(spans)
    except Exception:
        logger.exception("spans could not be exported")


def _add(spans: Iterable[Span]) -> None:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    def otel_context(context: TraceContext, *, is_remote: bool) -> SpanContext:
        return SpanContext(context.trace_id, context.span_id, is_remote=is_remote, trace_flags=TraceFlags(SAMPLED))

    processor, resource = _exporter_of(os.getpid())
    scope = InstrumentationScope("pushhub")
    for span in spans:
        processor.on_end(
            ReadableSpan(
                name=span.name,
                context=otel_context(span.context, is_remote=False),
                parent=otel_context(span.parent, is_remote=True),
                resource=resource,
                attributes=span.attributes,
                kind=SpanKind[span.kind],
                status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
                start_time=int(span.started * 1e9),
                end_time=int(max(span.ended, span.started) * 1e9),
                instrumentation_scope=scope,
            )
        )


def shut_down() -> None:
    """Send the remaining spans, and end the exporter's thread."""
    if _exporter_of.cache_info().currsize:
        _exporter_of(os.getpid())[0].shutdown()  # type: ignore[no-untyped-call]
    _exporter_of.cache_clear()


@cache
def _exporter_of(_pid: int) -> tuple[BatchSpanProcessor, Any]:
    """Return the exporter of a process. A fork needs its own, because it has no threads of its parent."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    has_name = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if has_name else {"service.name": "pushhub"})
    processor = BatchSpanProcessor(OTLPSpanExporter())
    atexit.register(shut_down)
    return processor, resource
