"""The readers of settings, and the settings that contradict each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import certifi
import pytest

from pushhub.common import environment as env
from pushhub.common.databases import database_config
from pushhub.common.datafolder import load_or_create_secret
from pushhub.common.errors import InvalidArgument
from pushhub.common.redisurls import check_redis_url
from tests.workers import ROOT


def test_a_secret_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from the file\n")
    monkeypatch.setenv("PUSHHUB_X", "from the environment")
    assert env.secret("X") == "from the environment"
    monkeypatch.setenv("PUSHHUB_X_FILE", str(tmp_path / "secret"))
    assert env.secret("X") == "from the file"
    monkeypatch.setenv("PUSHHUB_X_FILE", str(tmp_path / "missing"))
    with pytest.raises(env.SettingError, match="PUSHHUB_X_FILE=.*No such file"):
        env.secret("X")


@pytest.mark.parametrize(
    ("word", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:1", ("localhost", 1)),
        (":8000", ("127.0.0.1", 8000)),
    ],
)
def test_an_address_is_read(monkeypatch: pytest.MonkeyPatch, word: str, address: tuple[str, int]) -> None:
    monkeypatch.setenv("PUSHHUB_X", word)
    assert env.listen_address("X", "127.0.0.1:1") == address


@pytest.mark.parametrize(
    "word",
    [
        *("8000", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:http", "127.0.0.1:²"),
        *("::1:8000", "[::1:8000", "http://127.0.0.1:8000", "a b:80"),
    ],
)
def test_a_malformed_address_is_refused(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("PUSHHUB_X", word)
    with pytest.raises(env.SettingError, match="PUSHHUB_X=.*give host:port, for example 127.0.0.1:1"):
        env.listen_address("X", "127.0.0.1:1")


def test_numbers_and_switches_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHHUB_X", "many")
    for reader in (env.switch, lambda name: env.number(name, 1), lambda name: env.choice(name, ["A"])):
        with pytest.raises(env.SettingError, match="(?i)PUSHHUB_X='many'"):
            reader("X")


@pytest.mark.parametrize(("word", "bound"), [("0", "1 or more"), ("9", "8 or less")])
def test_a_number_beyond_its_bounds_is_refused(monkeypatch: pytest.MonkeyPatch, word: str, bound: str) -> None:
    monkeypatch.setenv("PUSHHUB_X", word)
    with pytest.raises(env.SettingError, match=f"PUSHHUB_X='{word}': give {bound}"):
        env.number("X", 4, least=1, most=8)


@pytest.mark.parametrize(
    ("read", "usable", "unusable"),
    [
        (lambda name: env.words(name, env.port), "80,443", ["80 443", "²", "0"]),
        (lambda name: env.words(name, ip_network), "10.0.0.0/8,::1", ["10.0.0.1/8", "10.0.0.0/33", "intranet"]),
        (lambda name: env.words(name, env.check_host), ".example.com,web_1,10.0.0.1,[::1],*",
         ["http://x", "x:80", "x y", "[x]"]),
        (env.pairs, "a=b,c=", ["a", "=b"]),
        (lambda name: env.web_url(name, "http://x"), "https://x:1/y", ["x", "ftp://x", "https://", "http://[::1", "http://x:y"]),
        (lambda name: env.store(name, local=False), "gs://x/y", ["x", "ftp://x", "s3://", "s3://key:secret@x"]),
        (env.authorities, certifi.where(), ["/nowhere", __file__]),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_used_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[str], object], usable: str, unusable: list[str]
) -> None:
    monkeypatch.setenv("PUSHHUB_X", usable)
    assert read("X")
    for word in unusable:
        monkeypatch.setenv("PUSHHUB_X", word)
        with pytest.raises(env.SettingError, match="^PUSHHUB_X(=.*)?: .*$") as raised:
            read("X")
        assert "secret" not in str(raised.value)


def test_a_misspelt_setting_is_told_from_what_others_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PUSHHUB_")]:
        monkeypatch.delenv(name)
    for name in ("ALLOW_HTTP", "HTTP", "FLOWER"):
        env.switch(name)
    monkeypatch.setenv("PUSHHUB_ALLOW_HTTP", "on")
    monkeypatch.setenv("PUSHHUB_PORT", "tcp://10.0.0.1:80")
    assert env.misspelt() == []
    monkeypatch.setenv("PUSHHUB_ALOW_HTTP", "on")
    assert env.misspelt() == ["PUSHHUB_ALOW_HTTP is no setting of PushHub: did you mean PUSHHUB_ALLOW_HTTP?"]


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False), ("127.0.0.1.example.com", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognised(host: str, is_loopback: bool) -> None:
    assert env.is_loopback(host) is is_loopback


def test_urls_are_those_of_this_machine() -> None:
    assert env.url(("0.0.0.0", 80)) == "http://127.0.0.1:80"
    assert env.url(("::", 80)) == "http://[::1]:80"


#: Django itself would take most of the time.
READ = "from pushhub.settings import DATABASES, REDIS_URL; print(REDIS_URL, DATABASES['default']['PASSWORD'])"


def read(tmp_path: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Read the settings of an environment in a new process, and print two of them; or have it run a command."""
    other_environment = {name: value for name, value in os.environ.items() if not name.startswith("PUSHHUB_")}
    other_environment.pop("DJANGO_SETTINGS_MODULE", None)
    pushhub_environment = {
        "PUSHHUB_DATA": str(tmp_path),
        **{f"PUSHHUB_{name}": value for name, value in settings.items()},
    }
    return subprocess.run(
        [sys.executable, *(command or ("-c", READ))], cwd=ROOT,
        env={**other_environment, **pushhub_environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


CLUSTER = "rediss+cluster://one:6379,two"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"SECRET_KEY": ""}, "PUSHHUB_SECRET_KEY is not set: give 50 random characters or more"),
        ({"ANONYMOUS": "1"}, "PUSHHUB_ANONYMOUS='1': give a user:NAME@HOST"),
        ({"ANONYMOUS": "user:me@here", "HTTP": "0.0.0.0:8000"}, "PUSHHUB_ANONYMOUS lets callers in"),
        ({"ANONYMOUS": "user:me@here", "BEHIND_PROXY": "on"}, "PUSHHUB_ANONYMOUS lets callers in"),
        ({"REDIS_URL": "localhost"}, "PUSHHUB_REDIS_URL: give redis://host:port/0"),
        ({"REDIS_URL": "redis://x/0?a=b"}, "PUSHHUB_REDIS_URL: its options cannot be used: "),
        ({"REDIS_URL": CLUSTER}, "PUSHHUB_BROKER_URL: give a single Redis, redis://host:"),
        ({"REDIS_URL": f"{CLUSTER}/1"}, "PUSHHUB_REDIS_URL: a Cluster has one database only"),
        ({"BROKER_URL": "redis://b"}, "PUSHHUB_BROKER_URL: it is for a Redis beside the Cluster"),
        ({"REDIS_URL": CLUSTER, "BROKER_URL": CLUSTER}, "PUSHHUB_BROKER_URL: give a single Redis"),
        ({"REDIS_URL": CLUSTER, "BROKER_URL": "redis://b", "CELLS": "1"}, "PUSHHUB_CELLS='1': give 2 or more"),
        ({"DATABASE_URL": "nonsense://x"}, "PUSHHUB_DATABASE_URL: give postgres://"),
        ({"REPLICA_URL": "postgres://db/x"}, "PUSHHUB_REPLICA_URL: a replica is a standby of a Postgr"),
        (
            {"DATABASE_URL": "postgres://db/x", "REPLICA_URL": "sqlite:///x"},
            "PUSHHUB_REPLICA_URL: give postgres://user",
        ),
        ({"SECRET_KEY_FILE": "/nonexistent"}, "PUSHHUB_SECRET_KEY_FILE='/nonexistent': No such file"),
        ({"SECRET_KEY_FILE": sys.executable}, f"PUSHHUB_SECRET_KEY_FILE='{sys.executable}': it is no text in UTF-8"),
    ],
)
def test_unusable_settings_are_reported_in_one_line(tmp_path: Path, settings: dict[str, str], line: str) -> None:
    done = read(tmp_path, "manage.py", "check", **{"SECRET_KEY": "x"} | settings)
    assert done.returncode == 1
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_celerys_command_line_reports_them_in_one_line_too(tmp_path: Path) -> None:
    done = read(tmp_path, "-m", "celery", "--app=pushhub", "report")
    assert done.stderr.startswith("PUSHHUB_SECRET_KEY is not set: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        *(
            "redis://x:y/0",
            "redis://x:0",
            "redis://x/one",
            "redis://x/²",
            "http://x",
            "redis://[x",
            "redis://u:p#w@x/0",
        ),
        *("redis://x/0?a=1", "redis://x/0?socket_timeout=a", "rediss://x?ssl_cert_reqs=a", "sentinel://x:y?master=m"),
    ],
)
def test_an_unusable_url_of_redis_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_redis_url(url)
    assert url not in raised.value.message


@pytest.mark.parametrize(
    "url",
    [
        *("redis://x", "redis://[::1]:6379/0", f"{CLUSTER}/0", "unix:///run/redis.sock?db=1"),
        "rediss://u:p%23w@x:6380/1?ssl_ca_certs=/ca.pem&socket_timeout=1.5",
        "sentinels://u@x:1,y/0?master=m&sentinel_username=s&ssl_certfile=/c",
    ],
)
def test_a_url_of_redis_is_accepted(url: str) -> None:
    check_redis_url(url)


@pytest.mark.parametrize("url", ["mysql://u:secret@x/y", "postgres://x", "postgres://u:secret#@x/y", "/srv/x.sqlite3"])
def test_a_url_of_no_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="give postgres://user:password@host:5432/name or sqlite") as raised:
        database_config(url)
    assert "secret" not in raised.value.message


@pytest.mark.parametrize("url", ["sqlite://", "sqlite://:memory:"])
def test_a_database_that_processes_do_not_share_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="in memory: give sqlite:////path"):
        database_config(url)


def test_passwords_are_added_to_the_urls(tmp_path: Path) -> None:
    done = read(
        tmp_path, SECRET_KEY="x", REDIS_URL="redis://redis:6379/0", REDIS_PASSWORD="a/b@c",
        DATABASE_URL="postgres://pushhub@db:5432/x", DATABASE_PASSWORD="p:w",
    )  # fmt: skip
    assert done.stdout == "redis://:a%2Fb%40c@redis:6379/0 p:w\n", done.stderr


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        (
            "rediss://pushhub@redis:6379/0?ssl_ca_certs=/ca.pem",
            "rediss://pushhub:p%40w@redis:6379/0?ssl_ca_certs=/ca.pem",
        ),
        ("redis://redis/1", "redis://:p%40w@redis/1"),
        ("unix:///run/redis.sock", "unix://:p%40w@/run/redis.sock"),
        ("redis://pushhub:own@redis/0", "redis://pushhub:own@redis/0"),
        (f"{CLUSTER}/0?ssl_ca_certs=/ca.pem", "rediss+cluster://:p%40w@one:6379,two/0?ssl_ca_certs=/ca.pem"),
    ],
)
def test_the_password_of_redis_is_that_of_the_urls_user(tmp_path: Path, url: str, whole: str) -> None:
    file = tmp_path / "password"
    file.write_text("p@w\n")
    beside = {"BROKER_URL": "redis://b"} if url.startswith(CLUSTER) else {}
    done = read(tmp_path / "data", SECRET_KEY="x", REDIS_URL=url, REDIS_PASSWORD_FILE=str(file), **beside)
    assert done.stdout.startswith(f"{whole} "), (done.stdout, done.stderr)


def test_the_secret_of_make_up_is_kept_and_found_again(tmp_path: Path) -> None:
    assert read(tmp_path, DEVELOPMENT="1").returncode == 0
    kept = tmp_path / "secret-key"
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_text()
    assert read(tmp_path).returncode == 0
    assert kept.read_text() == before


def test_an_empty_secret_is_refused_and_none_is_left_by_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret-key").touch()
    refused = read(tmp_path, DEVELOPMENT="1")
    assert refused.returncode != 0 and "secret-key is empty" in refused.stderr
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        load_or_create_secret(tmp_path / "other" / "secret-key")
    assert not (tmp_path / "other" / "secret-key").exists()


def test_a_data_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    """A socket's path has 107 bytes at most, which 40 Chinese characters exceed."""
    data = tmp_path / ("数据" * 20)
    script = "import django.conf; print(django.conf.settings.REDIS_URL.removeprefix('unix://'))"

    def run() -> subprocess.CompletedProcess[str]:
        variables = {"PUSHHUB_DATA": str(data), "PUSHHUB_SECRET_KEY": "x", "TMPDIR": str(tmp_path)}
        variables["DJANGO_SETTINGS_MODULE"] = "pushhub.settings"
        return subprocess.run(
            [sys.executable, "-c", script], env=os.environ | variables, cwd=ROOT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    socket = Path(run().stdout.strip())
    assert (socket.name, socket.parent.parent) == ("redis.sock", tmp_path)
    # When another user has made that folder, or may open it, then PushHub does not connect there
    socket.parent.mkdir()
    socket.parent.chmod(0o777)
    refused = run()
    assert refused.returncode != 0
    assert f"{socket.parent} is not this user's alone: remove it, or give PUSHHUB_DATA a shorter path" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_in_a_public_place_has_the_owner_of_the_data(tmp_path: Path) -> None:
    (folder := tmp_path / "folder").mkdir(mode=0o700)
    env.check_own_folder(folder, like=tmp_path)
    env.check_own_folder(folder, like=tmp_path / "to come")
    env.check_own_folder(tmp_path / "to come", like=tmp_path)
    os.chown(folder, 12345, -1)
    with pytest.raises(env.SettingError, match="is not this user's alone"):
        env.check_own_folder(folder, like=tmp_path)
    (link := tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(env.SettingError, match="is not this user's alone"):
        env.check_own_folder(link, like=tmp_path)
