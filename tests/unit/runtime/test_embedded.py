"""Which Redis PushHub starts with, and what it reports about the version."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from pushhub.runtime.redisversion import UnusableRedisError, version_line


@pytest.mark.parametrize(
    ("info", "line"),
    [
        ({"redis_version": "8.2.3"}, "Redis 8.2.3"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, "Valkey 8.1.0"),
        (
            {"redis_version": "6.2.14"},
            "Redis 6.2.14: it works, but gets no security fixes any more; use 7.2 or newer",
        ),
    ],
)
def test_the_version_is_reported_in_one_line(info: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda self, section: info)
    assert version_line("unix:///nowhere") == line


def test_a_redis_that_lacks_commands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda self, section: {"redis_version": "5.0.7"})
    with pytest.raises(UnusableRedisError, match=r"Redis 5\.0\.7 is too old: PushHub needs 6\.2"):
        version_line("unix:///nowhere")


def test_the_embedded_redis_is_maintained(redis_server: str) -> None:
    line = version_line(redis_server)
    assert line.startswith("Redis ") and "security" not in line
