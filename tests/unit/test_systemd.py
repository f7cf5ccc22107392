"""The units in deploy/systemd/: what they run exists, and systemd reads them."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests.unit.test_documents import read_settings

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def service(name: str) -> dict[str, str]:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return dict(parser["Service"])


@pytest.mark.parametrize("instance", ["web", "grpc", "push", "push-2", "maintenance", "flower"])
def test_an_instance_runs_the_process_of_its_name(instance: str) -> None:
    for key in ("ExecStart", "ExecStartPost"):
        shell = re.fullmatch(r"/bin/sh -c '(.*)'", service("pushhub@.service")[key].replace("%i", instance))
        assert shell
        script = shell.group(1).replace("exec .venv/bin/python", "echo").replace(".venv/bin/python", "echo")
        printed = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True).stdout
        module, name, *flags = printed.split()[1:]
        assert (module, flags) == ("pushhub.runtime.processes", ["--check"] * (key == "ExecStartPost"))
        assert name == instance


def test_a_database_that_comes_up_late_is_migrated_nevertheless() -> None:
    assert service("pushhub-migrate.service")["Restart"] == "on-failure"


def test_their_settings_are_read() -> None:
    read = read_settings()
    for line in (UNITS / "pushhub.env").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            assert line.partition("=")[0].removesuffix("_FILE") in read


def test_the_files_and_the_lines_of_the_proxy_that_the_page_names_exist() -> None:
    page = (UNITS / "README.md").read_text(encoding="utf-8")
    files = re.findall(r"/opt/pushhub/(deploy/\S+)", page)
    assert files and [name for name in files if not [*UNITS.parents[1].glob(name)]] == []
    proxy = (UNITS.parent / "nginx.conf").read_text(encoding="utf-8")
    lines = [line for cell in re.findall(r"^\| (`.+?) \|", page, re.M) for line in re.findall("`(.+?)`", cell)]
    assert lines and [line for line in lines if line not in proxy] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    for path in UNITS.glob("pushhub*.*"):
        text = path.read_text(encoding="utf-8").replace("/opt/pushhub/.venv/bin/python", "/bin/true")
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    units = [str(path) for path in tmp_path.iterdir() if path.suffix in (".service", ".target")]
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
