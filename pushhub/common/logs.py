"""The form of log records: readable lines, or JSON objects with one event each."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson

from pushhub.common.errors import describe
from pushhub.common.outages import outage_of
from pushhub.common.repeats import Repeats


class JsonFormatter(logging.Formatter):
    """One JSON object per line.

    `extra={"event": ..., "fields": {...}}` gives a record the name of its event and that event's keys.
    """

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": getattr(record, "event", "log"),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            row["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class ExpectedResponses(logging.Filter):
    """Turns Django's warnings and errors about responses that need no line into debug records.

    The response tells the client of an invalid request. 501 is the status of a method that PushHub doesn't have, and
    503 that of an outage, which has a line of its own.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        status = getattr(record, "status_code", 0)
        if 400 <= status < 500 or status in (501, 503):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True


class Outages(logging.Filter):
    """Reduces the records about an outage to one line a minute for each cause, without a traceback, and with a count.

    A record is about an outage if its exception is one, or an exception among its arguments. So it doesn't matter
    which part of PushHub logs it, or whether a library does.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._repeats = Repeats(monotonic=monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        error = _outage_in(record) if record.levelno >= logging.WARNING else None
        cause = outage_of(error)
        if error is None or cause is None:
            return True
        with self._lock:
            more = self._repeats.count(cause) - 1
        if more < 0:
            return False
        first_line = record.getMessage().partition("\n")[0]
        message = f"{cause}: {first_line} ({describe(error)})"
        if more:
            message += f"; {more} more lines like this since the last one"
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args = message, None
        record.exc_info = record.exc_text = record.stack_info = None
        record.event, record.fields = "outage", {"cause": cause, "more": more}
        return True


def _outage_in(record: logging.LogRecord) -> BaseException | None:
    arguments = record.args if isinstance(record.args, tuple) else ()
    errors = [record.exc_info[1] if record.exc_info else None, *arguments]
    return next((error for error in errors if isinstance(error, BaseException) and outage_of(error)), None)
