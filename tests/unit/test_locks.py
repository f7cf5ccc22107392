"""The files of locks/, from which everything is installed: each package has its hashes, and each pin is in a lock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
RUNTIME = ("service", "spark", "java", "redis")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def packages(path: Path) -> list[tuple[Requirement, list[str]]]:
    """Return each package of a lock with its hashes. Anything else in the file is an error."""
    entries = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    split = [(entry.partition(" --hash=")[0], entry) for entry in entries]
    return [(Requirement(package), HASH.findall(entry)) for package, entry in split]


def pins(*paths: str) -> set[tuple[str, str]]:
    lines = [line for path in paths for line in (ROOT / path).read_text(encoding="utf-8").splitlines()]
    return versions(Requirement(line.partition("#")[0]) for line in lines if re.match(r"\w", line))


def versions(requirements: Iterable[Requirement]) -> set[tuple[str, str]]:
    return {(canonicalize_name(requirement.name), str(requirement.specifier)) for requirement in requirements}


def locked(*names: str) -> set[tuple[str, str]]:
    return versions(package for name in names for package, _ in packages(ROOT / "locks" / f"{name}.txt"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_has_one_version_its_hashes_and_no_address(path: Path) -> None:
    for package, hashes in packages(path):
        assert re.fullmatch(r"==[^,*]+", str(package.specifier)), package
        assert hashes, package
        assert package.url is None
    assert "://" not in path.read_text(encoding="utf-8")
    assert "--index" not in path.read_text(encoding="utf-8")


def test_every_pin_is_locked() -> None:
    assert pins("requirements.txt") <= locked(*RUNTIME)
    assert pins("tests/requirements.txt", "docs/receivers/python/requirements.txt") <= locked("tests")
    for name in ("docs", "tools"):
        assert pins(f"locks/{name}.in") <= locked(name)


def test_what_is_installed_together_has_one_version() -> None:
    """A package may have several versions for several versions of Python."""
    service, spark, tests = (dict(locked(name)) for name in ("service", "spark", "tests"))
    for one, other in ((service, spark), (service, tests), (spark, tests)):
        shared = (one.keys() & other.keys()) - {"numpy"}
        assert {name: one[name] for name in shared} == {name: other[name] for name in shared}


def test_everything_is_installed_with_its_hashes() -> None:
    """No recipe of the Makefile and no step of the image calls pip in another way."""
    for path, count in (("Makefile", 3), ("Dockerfile", 2)):
        text = (ROOT / path).read_text(encoding="utf-8")
        commands = re.findall(r"pip\)?(?: --\S+)* install (.*)", text, re.I)
        assert len(commands) == count
        assert all("--require-hashes" in command for command in commands), commands
