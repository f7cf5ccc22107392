"""Log records as JSON, and clients' errors that are not ours."""

from __future__ import annotations

import logging
import sys
from typing import Any

import orjson
import pytest
from django.conf import settings
from django.test import RequestFactory
from django.utils.log import log_response

from pushhub.common.logs import ClientErrors, JsonFormatter


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


@pytest.mark.parametrize(("status", "is_logged"), [(404, False), (409, False), (501, False), (500, True), (503, True)])
def test_a_clients_error_is_not_logged_as_a_warning_or_an_error(
    status: int, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert settings.LOGGING["loggers"]["django.request"]["filters"] == ["client_errors"]
    request = RequestFactory().get("/v1/nothing")
    from django.http import HttpResponse

    log_response("%s: %s", "an answer", request.path, response=HttpResponse(status=status), request=request)
    assert bool(caplog.records) == is_logged


def test_debug_shows_clients_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("pushhub.test")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    not_found = record("Not Found", status_code=404)
    assert ClientErrors().filter(not_found)
    assert not_found.levelname == "DEBUG"
