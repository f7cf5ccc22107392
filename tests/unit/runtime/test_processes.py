"""`python -m pushhub.runtime.processes`: what keeps a process from being started, and what it says of one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pushhub.common.environment import SettingError
from pushhub.runtime import processes
from tests.ports import free_port
from tests.redisserver import RedisServer
from tests.workers import ROOT


@pytest.mark.parametrize("login", ["admin", "admin:", ":hunter2", "admin:hunter2,"])
def test_a_login_of_flower_has_a_name_and_a_password(monkeypatch: pytest.MonkeyPatch, login: str) -> None:
    monkeypatch.setenv("PUSHHUB_FLOWER_LOGIN", login)
    with pytest.raises(SettingError, match="^PUSHHUB_FLOWER_LOGIN: give user:password$"):
        processes.flower()
    monkeypatch.setenv("PUSHHUB_FLOWER_LOGIN", "admin:hunter2,ada:x:y")
    assert processes.flower().environment == {"FLOWER_BASIC_AUTH": "admin:hunter2,ada:x:y"}


def run(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    own = {"PUSHHUB_SECRET_KEY": "x", "DJANGO_SETTINGS_MODULE": "pushhub.settings"}
    command = [sys.executable, "-m", "pushhub.runtime.processes", *words]
    return subprocess.run(
        command, env=os.environ | own | settings, cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_a_worker_is_not_ready_without_redis_and_yet_no_reason_to_start_it_anew() -> None:
    redis_is_away = {"PUSHHUB_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    assert run("push", "--check", **redis_is_away).returncode == 1
    assert run("maintenance", "--alive", **redis_is_away).returncode == 0


def test_a_worker_that_does_not_answer_has_to_be_started_anew(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        for flag in ("--check", "--alive"):
            assert run("push", flag, PUSHHUB_REDIS_URL=server.url).returncode == 1


def test_workers_of_one_machine_have_names_of_their_own() -> None:
    """By which each is asked how it is."""
    assert f"--hostname=push-2@{socket.gethostname()}" in processes.push("push-2").command
    refused = run("web-2", "--check")
    assert (refused.returncode, refused.stderr.splitlines()[-1]) == (
        2,
        "python -m pushhub.runtime.processes: error: unknown process 'web-2': choose from "
        "web, grpc, push, maintenance, flower, rollup",
    )
