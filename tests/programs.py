"""The programs that some tests need and PyPI doesn't have, and how to get them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}


def postgresql_programs() -> Path | None:
    """Return the folder of `initdb` and `pg_ctl`: that of the newest Debian package, or else the one on the PATH."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    on_path = shutil.which("initdb")
    initdb = packaged[-1] if packaged else Path(on_path) if on_path else None
    return initdb.parent if initdb else None


def pgbouncer() -> str | None:
    """Return the path of PgBouncer, which Debian has outside of most PATHs."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def chromium() -> str | None:
    """Return the path of Chromium: its shell without windows if it is there, which takes a third less of the CPU."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def bench_programs() -> bool:
    """Return whether the bench's endpoint and load generators are installed. Debian has nginx outside of most PATHs."""
    return all(shutil.which(name) or shutil.which(name, path="/usr/sbin") for name in ("nginx", "wrk", "h2load"))


def has_rust() -> bool:
    """Return whether cargo works: that of rustup needs a toolchain too."""
    is_there = shutil.which("cargo") is not None
    return is_there and subprocess.run(["cargo", "--version"], capture_output=True, check=False).returncode == 0


def _has_shells() -> bool:
    return all(shutil.which(shell) for shell in ("zsh", "fish"))


def _has_systemd() -> bool:
    return shutil.which("systemd-analyze") is not None


@dataclass(frozen=True)
class Program:
    """A program, the tests that need it, whether it is installed, and the command that installs it on Debian."""

    tests: str
    is_installed: Callable[[], bool]
    install_hint: str


PROGRAMS = (
    Program("the tests on PostgreSQL", lambda: postgresql_programs() is not None, "apt-get install postgresql"),
    Program("the test behind PgBouncer", lambda: pgbouncer() is not None, "apt-get install postgresql pgbouncer"),
    Program("the tests in a browser", lambda: chromium() is not None, "apt-get install chromium"),
    Program(
        "the tests of proxy and bench",
        bench_programs,
        "apt-get install nginx-light wrk nghttp2-client",
    ),
    Program("the tests of completion in zsh and fish", _has_shells, "apt-get install zsh fish"),
    Program("a test of systemd units", _has_systemd, "apt-get install systemd"),
    Program("the tests of power cuts", lambda: shutil.which("gcc") is not None, "apt-get install gcc libc6-dev"),
    Program("the tests of the Node clients", lambda: shutil.which("npm") is not None, "apt-get install npm"),
    Program("the tests of the Go clients", lambda: shutil.which("go") is not None, "install Go 1.26 or newer"),
    Program(
        "the tests of the Java clients",
        lambda: shutil.which("mvn") is not None and shutil.which("javac") is not None,
        "apt-get install maven default-jdk-headless",
    ),
    Program("the tests of the Rust client", has_rust, "install Rust 1.91 or newer"),
)


def left_out() -> str:
    """Return a line that names the tests which this machine cannot run and how to change that, or an empty text."""
    missing = [program for program in PROGRAMS if not program.is_installed()]
    if not missing:
        return ""
    return "Left out: " + "; ".join(f"{program.tests} ({program.install_hint})" for program in missing)
