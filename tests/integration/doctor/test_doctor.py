"""`pushhub doctor` finds what is wrong with an installation, and says what to do."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from django.db import connection

from deliveries.telemetry.series.gauges import take_gauges
from pushhub.doctor import database, machine, redis, service
from pushhub.doctor.command import main, run
from pushhub.doctor.finding import Finding, Level, judge_clock
from tests.certificates import Authority
from tests.databases import other_database
from tests.ports import free_port
from tests.receiver import Receiver
from tests.redisserver import RedisServer
from tests.workers import ROOT, Worker

pytestmark = [pytest.mark.django_db(transaction=True)]


def faults(findings: Any) -> list[Finding]:
    return [finding for finding in findings if finding.level != Level.OK]


def texts(findings: Any) -> str:
    return "\n".join(f"{finding.level} {finding.text} {finding.remedy}" for finding in findings)


@pytest.fixture
def free_ports(settings: Any) -> None:
    """Ports at which nothing listens, in place of those of a PushHub on this machine."""
    for name in ("HTTP_ADDRESS", "GRPC_ADDRESS", "FLOWER_ADDRESS"):
        setattr(settings, name, ("127.0.0.1", free_port()))


def test_a_sound_installation_has_no_fault_but_its_missing_workers(
    redis_url: str, free_ports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    wrong = {finding["check"] for finding in document["findings"] if finding["level"] == "failed"}
    assert wrong == {"push workers"}
    assert {"Redis", "database", "disk", "permissions", "clocks", "capacity"} <= {
        finding["check"] for finding in document["findings"]
    }
    assert not logging.root.manager.disable


def test_the_backlog_is_that_of_the_last_gauges(
    redis_url: str, free_ports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    take_gauges()
    main([])
    assert re.search(r"capacity +backlog at \d\d:\d\d UTC: 0 messages waited", capsys.readouterr().out)


def test_each_finding_is_a_line_with_its_remedy(
    redis_url: str, free_ports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.startswith("1 failed, ")
    (wrong,) = [line for line in lines if line.startswith("failed")]
    assert wrong.endswith("no push worker gives a sign of life -> " + service.REMEDIES["push_workers"])


def test_a_redis_that_is_away_is_a_finding_without_its_password(
    settings: Any, free_ports: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.REDIS_URL = f"redis://:hunter2@127.0.0.1:{free_port()}/0"
    assert main([]) == 1
    printed = "".join(capsys.readouterr())
    redis_findings = [line for line in printed.splitlines() if "Redis cannot be reached" in line]
    assert redis_findings[0].startswith("failed   Redis         Redis cannot be reached -> Start it")
    assert len(redis_findings) > 3
    assert {line.partition(" -> ")[2] for line in redis_findings[1:]} == {service.REMEDIES["redis"]}
    assert "hunter2" not in printed and "Traceback" not in printed


def test_a_look_at_what_was_never_started_creates_nothing(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PUSHHUB_", "DJANGO_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pushhub.doctor"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "failed   database      there is none yet at " in ran.stdout
    assert "as `pushhub up` has them, as PUSHHUB_SECRET_KEY is not set" in ran.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_redis_that_forgets_is_found(settings: Any, tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as server:
        settings.REDIS_URL = server.url
        findings = faults(redis.redis())
    assert [finding.level for finding in findings] == [Level.FAILED, Level.WARNING]
    assert "allkeys-lru" in findings[0].text and "noeviction" in findings[0].remedy
    assert "67 MB" in findings[1].text


@pytest.mark.parametrize(("version", "level"), [("7.0.15", Level.WARNING), ("8.2.3:fork", Level.OK)])
def test_a_redis_without_security_fixes_is_found(
    version: str, level: Level, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis.Redis.info", lambda self, section="": {"redis_version": version})
    finding = next(redis.redis())
    assert (finding.level, finding.text.partition(": it works")[0]) == (level, f"Redis {version}")


def test_a_replica_is_found(settings: Any, tmp_path: Path) -> None:
    with RedisServer(tmp_path, "--replicaof", f"127.0.0.1 {free_port()}") as server:
        settings.REDIS_URL = server.url
        (finding,) = faults(redis.redis())
    assert (finding.level, finding.text) == (Level.FAILED, "it is a replica, and takes no writes")


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.2, Level.OK), (-2, Level.WARNING), (30, Level.FAILED), (-30, Level.FAILED)]
)
def test_clocks_are_judged_by_their_difference(seconds: float, level: Level) -> None:
    assert judge_clock("clocks", "Redis", seconds).level == level


def test_a_full_disk_is_found(settings: Any) -> None:
    assert faults(machine.disks()) == []
    settings.JOURNAL_FREE_MB = 10**9
    assert {finding.level for finding in machine.disks()} == {Level.FAILED}
    assert ("nothing is stored" in next(machine.disks()).remedy) == settings.IS_SQLITE


def test_a_short_secret_is_found(settings: Any) -> None:
    settings.SECRET_KEY = "s" * 49
    (finding,) = faults(machine.variables())
    assert finding.level == Level.WARNING and "PUSHHUB_SECRET_KEY has fewer than 50" in finding.text
    settings.SECRET_KEY = "s" * 50
    assert faults(machine.variables()) == []


def test_a_misspelt_setting_is_found(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.SECRET_KEY = "s" * 50
    monkeypatch.setenv("PUSHHUB_ALOW_HTTP", "on")
    (finding,) = faults(machine.variables())
    assert finding.level == Level.WARNING and "did you mean PUSHHUB_ALLOW_HTTP?" in finding.text


def test_secrets_that_everybody_may_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 50)
    secret.chmod(0o640)
    monkeypatch.setenv("PUSHHUB_SECRET_KEY_FILE", str(secret))
    assert faults(machine.permissions()) == []
    secret.chmod(0o644)
    (finding,) = faults(machine.permissions())
    assert (finding.level, finding.remedy) == (Level.WARNING, f"chmod o= {secret}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os.path, "ismount", lambda path: path == secret)
        assert faults(machine.permissions()) == []
    secret.unlink()
    (finding,) = faults(machine.permissions())
    assert finding.level == Level.FAILED


def test_a_push_worker_may_open_as_many_files_as_the_doctor_says(redis_url: str) -> None:
    limit_of_a_shell = "from resource import *; setrlimit(RLIMIT_NOFILE, (1024, getrlimit(RLIMIT_NOFILE)[1]))"
    with Worker(redis_url, first=limit_of_a_shell) as worker:
        soft, _ = resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE)
    assert f"a process may open {soft:,} files" in texts(machine.files())


def test_a_port_that_another_program_has_is_found(settings: Any, free_ports: None) -> None:
    assert faults(machine.ports()) == []
    with socket.create_server(settings.GRPC_ADDRESS) as listening:
        listening.settimeout(60)
        (finding,) = faults(machine.ports())
    assert finding.level == Level.FAILED and "PUSHHUB_GRPC" in finding.remedy


def test_the_end_of_a_certificate_is_judged(settings: Any, tmp_path: Path) -> None:
    chain = Authority(tmp_path).chain("localhost")
    settings.GRPC_TLS_CERT, settings.PUBLIC_URL, settings.PUSH_CA_FILE = str(chain), "http://localhost", ""
    end = x509.load_pem_x509_certificate(chain.read_bytes()).not_valid_after_utc
    levels = [
        finding.level
        for days in (-60, -5, 1)
        for finding in machine.certificates(clock=lambda days=days: end + timedelta(days=days))
    ]
    assert levels == [Level.OK, Level.WARNING, Level.FAILED]
    chain.write_text("no certificate")
    assert [finding.level for finding in machine.certificates()] == [Level.FAILED]


def test_the_certificate_of_the_public_address_is_seen(settings: Any, tmp_path: Path) -> None:
    context = Authority(tmp_path).server_context("localhost")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        import threading

        def serve() -> None:
            with context.wrap_socket(listening.accept()[0], server_side=True) as secured:
                secured.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        settings.PUBLIC_URL = f"https://localhost:{listening.getsockname()[1]}"
        (finding,) = machine.certificates()
        thread.join()
    assert finding.level == Level.WARNING
    assert f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}" in finding.text
    (finding,) = machine.certificates()
    assert "was not seen" in finding.text


def test_migrations_that_are_to_come_are_found(settings: Any, tmp_path: Path) -> None:
    assert Level.FAILED not in {finding.level for finding in database.database()}
    settings.MIGRATION_MODULES = {}
    with other_database(tmp_path, name="doctor"):
        (finding,) = [finding for finding in database.database() if finding.level == Level.FAILED]
    assert "pushhub migrate" in finding.remedy


def test_a_postgresql_that_does_not_wait_for_its_disk_is_found() -> None:
    """As that of the tests, which need not outlive the machine."""
    found = [finding.remedy for finding in faults(database.database())]
    assert found == (["Set both to on."] if connection.vendor == "postgresql" else [])


def test_connections_of_postgresql_without_a_pooler_are_told_from_those_with_one() -> None:
    if connection.vendor == "postgresql":
        assert "no pooler" in texts(database.pooler())


def test_a_database_that_is_away_is_a_finding(settings: Any, tmp_path: Path) -> None:
    with other_database(tmp_path, name="away") as other:
        settings.IS_SQLITE = other.vendor == "sqlite"
        if other.vendor == "sqlite":
            other.settings_dict["NAME"] = str(tmp_path / "missing" / "database")
        else:
            settings_dict, other.settings_dict = other.settings_dict, {**other.settings_dict, "HOST": str(tmp_path)}
        try:
            (finding,) = faults(run("database", database.database))
        finally:
            if other.vendor != "sqlite":
                other.close()
                other.settings_dict = settings_dict
    assert (finding.level, finding.text) == (Level.FAILED, "the database cannot be reached")


def test_the_way_to_an_endpoint_is_tried(settings: Any) -> None:
    settings.ALLOW_HTTP = settings.ALLOW_PRIVATE = True
    with Receiver() as receiver:
        assert faults(service.endpoint(receiver.url)) == []
        assert receiver.requests == []
    (finding,) = faults(service.endpoint(f"http://127.0.0.1:{free_port()}/"))
    assert finding.level == Level.FAILED and "connect_failed" in finding.text
    (finding,) = faults(service.endpoint("ftp://127.0.0.1/"))
    assert "cannot be pushed to" in finding.text
