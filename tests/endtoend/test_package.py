"""The wheel and the source distribution have all files, and their commands run without a checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
#: A build only copies files: the checkout's tools are used, and nothing is fetched.
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def run(*command: str | Path, cwd: Path) -> str:
    process = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel that was built from the source distribution.

    It uses the checkout's installed dependencies, as fetching them again would take minutes.
    """
    folder = tmp_path_factory.mktemp("package")
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    for name in tracked:
        target = folder / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=folder / "checkout")
    (source,) = folder.glob("pushhub-*.tar.gz")
    run("tar", "-xzf", source, cwd=folder)
    unpacked = folder / source.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("pushhub-*.whl")
    venv.create(folder / "environment", with_pip=False)
    packages = next((folder / "environment" / "lib").glob("python*")) / "site-packages"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", packages, wheel, cwd=folder)
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(f"{site_packages}\n{Path(sys.prefix) / 'redis'}\n")
    return folder / "environment"


def test_every_file_that_runs_is_in_the_wheel(environment: Path) -> None:
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    kinds = re.compile(r"^(pushhub|subscriptions|deliveries)/.*(?<!\.po)$")
    tracked = [name for name in run("git", "ls-files", cwd=ROOT).splitlines() if kinds.match(name)]
    assert len(tracked) > 300
    assert [name for name in tracked if not (packages / name).exists()] == []


def test_the_emulator_starts_without_a_checkout(environment: Path, tmp_path: Path) -> None:
    script = (
        "import pushhub, pushhub.testing as testing; print(pushhub.__file__)\n"
        "with testing.Emulator(projects=['demo,orders']) as emulator: print(emulator.printed)"
    )
    printed = run(environment / "bin" / "python", "-c", script, cwd=tmp_path)
    assert str(environment) in printed
    assert "Server started, listening on" in printed


def test_the_command_runs(environment: Path, tmp_path: Path) -> None:
    main = "import sys, pushhub.cli; sys.argv[1:] = ['--help']; pushhub.cli.main()"
    assert "emulator" in run(environment / "bin" / "python", "-c", main, cwd=tmp_path)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["pushhub"] == "pushhub.cli:main"


def test_the_package_allows_the_versions_that_are_tested() -> None:
    """pyproject.toml has ranges; requirements.txt has the version of each dependency that the tests run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    ranges = {requirement.name: requirement for requirement in map(Requirement, allowed)}
    lines = re.findall(r"^[A-Za-z0-9][^#\n]*", (ROOT / "requirements.txt").read_text(), re.M)
    pins = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert set(ranges) == set(pins)
    for name, pin in pins.items():
        assert pin.extras == ranges[name].extras
        (version,) = [specifier.version for specifier in pin.specifier]
        assert ranges[name].specifier.contains(version), name
