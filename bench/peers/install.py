"""Installs peers into build/peers/, each in versions of its own; nothing of it gets into PushHub's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.processes import ROOT, BenchError, say

FOLDER = ROOT / "build" / "peers"
PROGRAMS = Path(__file__).parent / "programs"
INSTALL_SECONDS = 600


class Recipe(Protocol):
    """How a program of `programs/` is installed with its packages."""

    @property
    def program(self) -> str: ...
    @property
    def packages(self) -> tuple[str, ...]: ...

    def command(self, folder: Path) -> list[str]:
        """Return the command line that runs the program, once it is installed."""
        ...

    def install(self, folder: Path) -> None: ...


def prepare(name: str, recipe: Recipe) -> list[str]:
    """Install a program, unless it is there already, and return its command line. Raises BenchError."""
    folder = FOLDER / name
    wanted = "\n".join([recipe.program, *recipe.packages])
    stamp = folder / "installed"
    if recipe.packages and not (stamp.exists() and stamp.read_text() == wanted):
        say(f"  installing {', '.join(recipe.packages)}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        recipe.install(folder)
        stamp.write_text(wanted)
    return recipe.command(folder)


@dataclass(frozen=True, slots=True)
class Python:
    """A module in a virtual environment of its own, or in PushHub's if it needs no packages."""

    program: str
    packages: tuple[str, ...] = ()

    def command(self, folder: Path) -> list[str]:
        python = str(folder / "bin" / "python") if self.packages else sys.executable
        return [python, "-m", f"bench.peers.programs.{self.program}"]

    def install(self, folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", *self.packages])


@dataclass(frozen=True, slots=True)
class Node:
    """A module beside its node_modules."""

    program: str
    packages: tuple[str, ...]

    def command(self, folder: Path) -> list[str]:
        shutil.copy(PROGRAMS / self.program, folder)
        return ["node", str(folder / self.program)]

    def install(self, folder: Path) -> None:
        options = ["--save-exact", "--ignore-scripts", "--no-audit", "--no-fund"]
        _run(["npm", "install", "--prefix", str(folder), *options, *self.packages])


@dataclass(frozen=True, slots=True)
class Go:
    """A program that is compiled."""

    program: str
    packages: tuple[str, ...]

    def command(self, folder: Path) -> list[str]:
        shutil.copy(PROGRAMS / self.program, folder)
        _run(["go", "build", "-o", "peer", self.program], folder)
        return [str(folder / "peer")]

    def install(self, folder: Path) -> None:
        _run(["go", "mod", "init", "peer"], folder)
        _run(["go", "get", *self.packages], folder)


def _run(command: Sequence[str], folder: Path = ROOT) -> None:
    """Run a command; raises BenchError with its last line."""
    # Go would otherwise write-protect what it downloads, so that the folder could not be removed.
    environment = os.environ | {"GOPATH": str(FOLDER / "gopath"), "GOFLAGS": "-modcacherw"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except FileNotFoundError:
        raise BenchError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise BenchError(f"{' '.join(command[:3])} failed: {last}")
