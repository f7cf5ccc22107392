"""What logs say of the broker: the Redis that PushHub connects to, and no secret."""

from __future__ import annotations

import pytest
from kombu import Connection

from pushhub.celery import broker_url


@pytest.mark.parametrize(
    ("redis_url", "shown"),
    [
        ("unix:///data/redis.sock", "pushhub+socket:///data/redis.sock"),
        ("redis://:secret@cache:6380/3", "pushhub://:**@cache:6380/3"),
        ("rediss://pushhub:secret@cache:6380/0?ssl_ca_certs=/ca.pem", "pushhub://:**@cache:6380/0"),
        ("sentinel://:secret@one:26379,two:26379/0?master=main&sentinel_password=secret", "pushhub://:**@one:26379/0"),
    ],
)
def test_the_logs_name_the_redis_that_is_configured(
    redis_url: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Connection(broker_url(redis_url)) as connection:
        assert connection.as_uri() == shown
    assert not caplog.records
