"""Log records as JSON, responses that need no record, and outages, which have one line a minute."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import pytest
import redis
from django.conf import settings
from django.test import RequestFactory
from django.utils.log import log_response

from pushhub.common.logs import ExpectedResponses, JsonFormatter, Outages


def record(message: str = "hello %s", *arguments: Any, **extra: Any) -> logging.LogRecord:
    record = logging.LogRecord("pushhub.test", logging.INFO, "", 1, message, arguments, None)
    record.__dict__.update(extra)
    return record


def test_a_record_is_one_line_of_json() -> None:
    line = JsonFormatter().format(record("hello\n%s", "world"))
    assert "\n" not in line
    row = orjson.loads(line)
    assert (row["event"], row["level"], row["logger"]) == ("log", "INFO", "pushhub.test")
    assert row["message"] == "hello\nworld"


def test_an_event_has_its_own_keys() -> None:
    row = orjson.loads(JsonFormatter().format(record("x", event="delivery.attempted", fields={"attempt": 2})))
    assert (row["event"], row["attempt"]) == ("delivery.attempted", 2)


def test_an_exception_is_part_of_the_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        failure = record("x", exc_info=sys.exc_info())
    assert "ValueError: no" in orjson.loads(JsonFormatter().format(failure))["exception"]


@pytest.mark.parametrize(("status", "is_logged"), [(404, False), (409, False), (501, False), (500, True), (503, False)])
def test_an_expected_response_is_not_logged_as_a_warning_or_an_error(
    status: int, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.LOGGING["loggers"]["django.request"]["filters"] == ["expected_responses"]
    request = RequestFactory().get("/v1/nothing")
    from django.http import HttpResponse

    log_response("%s: %s", "an answer", request.path, response=HttpResponse(status=status), request=request)
    assert bool(caplog.records) == is_logged


def test_debug_shows_clients_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("pushhub.test")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    not_found = record("Not Found", status_code=404)
    assert ExpectedResponses().filter(not_found)
    assert not_found.levelname == "DEBUG"


AWAY = redis.ConnectionError("no route")
FULL = redis.OutOfMemoryError("no room")


def failure(error: BaseException, message: str = "it is tried again", *arguments: Any) -> logging.LogRecord:
    return record(message, *arguments, exc_info=(type(error), error, None), levelno=logging.ERROR, levelname="ERROR")


class Minutes:
    """A filter with a clock of its own, and the lines that it has let through."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._filter = Outages(monotonic=lambda: self.now)

    def lines(self, *records: logging.LogRecord) -> list[str]:
        return [JsonFormatter().format(it) for it in records if self._filter.filter(it)]


def test_an_outage_has_one_line_a_minute_for_each_cause_with_a_count() -> None:
    minutes = Minutes()

    assert len(minutes.lines(*(failure(AWAY) for _ in range(100)), *(failure(FULL) for _ in range(100)))) == 2
    minutes.now += 59
    assert minutes.lines(failure(AWAY)) == []
    minutes.now += 1
    [line] = minutes.lines(failure(AWAY))

    row = orjson.loads(line)
    assert row["message"] == (
        "Redis cannot be reached: it is tried again (ConnectionError: no route); "
        "100 more lines like this since the last one"
    )
    assert (row["level"], row["event"], row["cause"]) == ("WARNING", "outage", "Redis cannot be reached")
    assert row["more"] == 100
    assert "exception" not in row


def test_an_outage_is_also_known_by_an_exception_among_the_arguments_of_a_record() -> None:
    [line] = Minutes().lines(record("failed: %s\n%s", FULL, "a traceback", levelno=logging.ERROR))

    assert orjson.loads(line)["message"].startswith("Redis has no memory left: failed: no room (")


def test_other_errors_keep_each_of_their_lines_and_tracebacks() -> None:
    lines = Minutes().lines(*(failure(redis.ResponseError("WRONGTYPE Operation against a key")) for _ in range(3)))

    assert len(lines) == 3
    assert all("WRONGTYPE" in orjson.loads(line)["exception"] for line in lines)


def test_debug_records_about_an_outage_are_left_alone() -> None:
    assert Minutes().lines(record("seen", exc_info=(type(AWAY), AWAY, None), levelno=logging.DEBUG))
    assert settings.LOGGING["handlers"]["stderr"]["filters"] == ["outages"]
