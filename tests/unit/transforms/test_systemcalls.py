"""Machines without a filter of system calls: sandboxes work there, and PushHub says at its start what they lack."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from pushhub.common import databases
from pushhub.runtime import processes
from subscriptions.transforms import systemcalls


class System(NamedTuple):
    """The part of `os.uname()` that is used."""

    sysname: str
    machine: str


@pytest.fixture
def unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: System("Linux", "riscv64"))


def test_an_unknown_machine_is_named_and_left_unrestricted(unknown_machine: None) -> None:
    systemcalls.restrict_calls()

    assert Path(__file__).read_bytes()
    assert systemcalls.why_unrestricted() == "PushHub has no list of system calls for Linux on riscv64"


@pytest.mark.skipif(platform.system() != "Linux", reason="not Linux")
def test_linux_on_the_usual_machines_has_the_filter() -> None:
    assert (systemcalls.why_unrestricted() == "") == (platform.machine() in {"x86_64", "aarch64"})


def test_a_process_says_at_its_start_that_functions_run_unrestricted(
    unknown_machine: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []
    monkeypatch.setattr(os, "execv", lambda path, _: started.append(path))
    monkeypatch.setattr(sys, "argv", ["processes", "web"])
    monkeypatch.setattr(databases, "is_half_restored", lambda _: False)

    processes.main()

    assert started == [sys.executable]
    assert "functions of message transforms run without a filter of system calls: PushHub has no list" in caplog.text
