"""Clients in other languages: they are fetched and built once, and kept in the virtual environment's folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workers import ROOT

CACHE = ROOT / ".venv" / "compatibility"
#: A cold fetch of the largest client takes about a minute. A cold build of the Rust client takes three minutes of CPU
#: time, which was nine minutes on a busy machine.
BUILD_SECONDS = 1200
#: Where cargo keeps compiled crates, so that a change to the program compiles only the program. The folder outlives
#: the virtual environment.
CRATES = Path.home() / ".cache" / "pushhub-rust"

#: In programs of seconds, Java's second compiler takes half of the CPU.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"


def node_modules(folder: Path) -> Path:
    """Install the packages of the package-lock.json in `folder`; return their `node_modules`."""
    _require("npm")
    files = [folder / "package.json", folder / "package-lock.json"]

    def install(target: Path) -> None:
        for file in files:
            shutil.copy(file, target)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=target)

    return _cached("node", files, install) / "node_modules"


def go_program(folder: Path) -> Path:
    """Build the Go module in `folder`; return the program."""
    _require("go")
    files = [*sorted(folder.glob("*.go")), folder / "go.mod", folder / "go.sum"]
    # Without optimizations and symbols, a cold build takes a sixth less of the CPU.
    build = ["go", "build", "-gcflags=all=-N -l", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"]
    return _cached("go", files, lambda target: _run([*build, str(target / "program"), "."], cwd=folder)) / "program"


def rust_program(folder: Path) -> Path:
    """Build the Rust package `cases` in `folder`; return the program."""
    files = [folder / "Cargo.toml", folder / "Cargo.lock", *sorted((folder / "src").glob("*.rs"))]

    def build(target: Path) -> None:
        _run(["cargo", "build", "--locked", "--quiet", "--target-dir", str(CRATES)], cwd=folder)
        shutil.copy(CRATES / "debug" / "cases", target / "program")

    return _cached("rust", files, build) / "program"


def java_classpath(folder: Path) -> str:
    """Fetch the dependencies of the pom.xml in `folder` and compile its sources; return the class path."""
    _require("mvn", "javac")
    pom, sources = folder / "pom.xml", sorted(folder.glob("*.java"))

    def fetch(target: Path) -> None:
        shutil.copy(pom, target)
        _run(["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"], cwd=target, MAVEN_OPTS=FIRST_COMPILER)

    libraries = _cached("java-libraries", [pom], fetch) / "target" / "lib" / "*"

    def build(target: Path) -> None:
        javac = ["javac", f"-J{FIRST_COMPILER}", "-cp", str(libraries), "-d", str(target)]
        _run([*javac, *map(str, sources)], cwd=folder)

    return f"{_cached('java-classes', [pom, *sources], build)}:{libraries}"


def _require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def _run(command: Sequence[str], *, cwd: Path, **more: str) -> None:
    result = subprocess.run(
        command, cwd=cwd, env=os.environ | more, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
    )
    assert result.returncode == 0, f"{' '.join(command)}:\n{result.stdout}{result.stderr}"


def _cached(name: str, sources: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """Return a folder that `build` filled from `sources`. A folder of older sources is removed."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.relative_to(ROOT)}\0{source.stat().st_size}\0".encode() + source.read_bytes())
    parent = f"{name}-{sources[0].parent.relative_to(ROOT)}".replace(os.sep, "-")
    folder = CACHE / f"{parent}-{digest.hexdigest()[:16]}"
    CACHE.mkdir(exist_ok=True)
    with _locked(CACHE / f"{parent}.lock"):
        if not folder.exists():
            for old in CACHE.glob(f"{parent}-*"):
                shutil.rmtree(old)
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed
            unfinished.mkdir()
            try:
                build(unfinished)
            except BaseException:
                shutil.rmtree(unfinished)
                raise
            unfinished.rename(folder)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes of the test run respect."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
