"""Why Spark does not start is one line, in the terminal and in the row of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deliveries.models import PipelineRun
from deliveries.pipeline.starting import spark_starting
from pushhub.common.errors import FailedPrecondition
from tests.ports import wait_for
from tests.workers import ROOT, command_environment


@pytest.mark.usefixtures("needs_spark")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PUSHHUB_SPARK_MASTER", "nonsense", "Master must either be yarn or start with spark, k8s, or local"),
        ("PUSHHUB_SPARK_MASTER", "local[x]", "Could not parse Master URL: 'local[x]'"),
        ("PUSHHUB_SPARK_MEMORY", "99999999999999g", "Invalid maximum heap size: -Xmx99999999999999g"),
    ],
)
def test_a_wrong_setting_is_one_line(name: str, value: str, reason: str, tmp_path: Path) -> None:
    """Given settings with which Java's launcher, Java itself or Spark fails."""
    environment = command_environment(PUSHHUB_JOURNAL=str(tmp_path), **{name: value})
    command = [sys.executable, "-W", "ignore", "manage.py", "pipeline", "rollup", "--once"]

    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=600, check=False
    )

    line = f"Spark does not start: {reason}"
    assert (ended.returncode, ended.stderr) == (1, f"CommandError: {line}\n")
    assert [run.failure for run in PipelineRun.objects.all()] == [line]


def test_what_is_written_while_spark_starts_is_shown_once_it_has_started(capfd: pytest.CaptureFixture[str]) -> None:
    """Given a child that writes to stderr during the start and after it, as Java does."""
    said = ""

    def hears(words: str) -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return said == words

    with spark_starting():
        child = subprocess.Popen(["sh", "-c", "echo early >&2; read _; echo late >&2"], stdin=subprocess.PIPE)
        assert hears("")
    wait_for(lambda: hears("early\n"), what="what was held back")
    child.communicate(b"\n", timeout=600)
    wait_for(lambda: hears("early\nlate\n"), what="what came later")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("2026-11-26 09:45:54 ERROR Backend: Application has been killed.\n", "Application has been killed."),
        (
            "WARNING: x\norg.a.BException: [A_B] no\n\tat x\nCaused by: java.io.IOException: refused: /::1\n\tat y\n",
            "refused: /::1",
        ),
        ("", "what Python says"),
    ],
)
def test_the_reason_is_the_first_line_or_the_last_cause(lines: str, reason: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"^Spark does not start: {reason}$"), spark_starting():
        os.write(2, lines.encode())
        raise ValueError("what Python says\nin two lines")
