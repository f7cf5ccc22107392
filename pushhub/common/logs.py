"""The form of log records: readable lines, or JSON objects with one event each."""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

#: The event of records without a name such as `delivery.attempted`.
PLAIN_EVENT = "log"
NOT_IMPLEMENTED = 501


class JsonFormatter(logging.Formatter):
    """One JSON object per line.

    `extra={"event": ..., "fields": {...}}` gives a record the name of its event and that event's keys.
    """

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": getattr(record, "event", PLAIN_EVENT),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            row["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class ClientErrors(logging.Filter):
    """Turns Django's warnings and errors about invalid requests into debug records.

    The response already tells the client. 501 is the status of a method that PushHub doesn't have.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        status = getattr(record, "status_code", 0)
        if 400 <= status < 500 or status == NOT_IMPLEMENTED:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)
        return True
