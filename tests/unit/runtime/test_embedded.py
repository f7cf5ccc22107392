"""Which Redis PushHub starts with, and what it reports about the version."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from pushhub.common.environment import SettingError
from pushhub.runtime import embedded
from pushhub.runtime.embedded import RedisServer, command
from pushhub.runtime.redisversion import UnusableRedisError, version_line
from tests.ports import wait_for


@pytest.mark.parametrize(
    ("info", "line"),
    [
        ({"redis_version": "8.2.3"}, "Redis 8.2.3"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.0"}, "Valkey 8.1.0"),
        ({"redis_version": "7.0.15"}, "Redis 7.0.15: it works, but gets no security fixes any more; use 7.2 or newer"),
    ],
)
def test_the_version_is_reported_in_one_line(info: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda self, section: info)
    assert version_line("unix:///nowhere") == line


def test_a_redis_that_lacks_commands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis.Redis, "info", lambda self, section: {"redis_version": "6.2.14"})
    with pytest.raises(UnusableRedisError, match=r"Redis 6\.2\.14 is too old: PushHub needs 7\.0"):
        version_line("unix:///nowhere")


def test_the_embedded_redis_is_maintained(redis_server: str) -> None:
    line = version_line(redis_server)
    assert line.startswith("Valkey ") and "security" not in line


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> RedisServer:
    settings.EMBEDDED_REDIS_URL = f"unix://{tmp_path}/redis.sock"
    return RedisServer(url=settings.EMBEDDED_REDIS_URL, folder=tmp_path)


def keys_after_a_start(server: RedisServer) -> list[Any]:
    """Return the keys that a server has when it begins, and stop it as PushHub does."""
    server.prepare()
    with subprocess.Popen(command(socket=server.socket, folder=server.folder)) as process:
        try:
            with redis.Redis.from_url(server.url) as client:
                wait_for(server.is_ready, what="the server")
                keys = list(client.scan_iter())
                client.set("of this run", 1)
                server.save()
        finally:
            process.kill()
    return keys


def test_the_save_of_a_clean_stop_is_loaded_unless_another_kind_of_server_ran_since(server: RedisServer) -> None:
    assert keys_after_a_start(server) == []
    assert keys_after_a_start(server) == [b"of this run"]
    # Given a save of Redis, which Valkey could not load, then both are removed
    (server.folder / "redis-server.rdb").write_bytes(b"REDIS0012")
    assert keys_after_a_start(server) == []


def test_its_socket_may_be_in_a_folder_of_its_own_elsewhere(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    server = RedisServer(url=f"unix://{tmp_path}/elsewhere/redis.sock", folder=data / "redis")
    assert keys_after_a_start(server) == []
    assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    # When others may write there, then nothing is started
    server.socket.parent.chmod(0o777)
    with pytest.raises(SettingError, match="is not this user's alone"):
        server.prepare()


def test_a_machine_without_a_server_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "PACKAGE", "no_package")
    monkeypatch.setattr(embedded, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError, match="no Redis was found: install Valkey or Redis, or set PUSHHUB_REDIS_URL"):
        embedded.binary()
    (other := tmp_path / "redis-server").touch(mode=0o700)
    assert embedded.binary() == other
