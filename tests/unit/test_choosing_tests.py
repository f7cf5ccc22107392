"""`make test ONLY=...` runs the tests that it names, and a failed run says how to repeat the failed tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tests.__main__ as runner
from tests import programs

PULL = "tests/integration/pull/test_pull.py"


@pytest.mark.parametrize(
    ("words", "database", "arguments"),
    [
        ((), "sqlite", ["tests"]),
        ((), "postgresql", ["tests/integration", "tests/security"]),
        ((PULL,), "sqlite", [PULL]),
        ((PULL, "tests/unit"), "postgresql", [PULL]),
        (("tests/unit",), "postgresql", ["tests/unit"]),
        ((f"{PULL}::test_x",), "sqlite", [f"{PULL}::test_x"]),
        (("lease", "or", "pull"), "sqlite", ["-k", "lease or pull", "tests"]),
        (("failed",), "sqlite", ["--last-failed", "--last-failed-no-failures=none", "tests"]),
    ],
)
def test_paths_are_run_and_other_words_are_keywords(
    words: tuple[str, ...], database: str, arguments: list[str]
) -> None:
    assert runner.Selection(words).arguments(database) == arguments


def test_only_tiers_that_touch_the_database_run_on_postgresql() -> None:
    assert runner.Selection((PULL,)).is_for("postgresql")
    assert not runner.Selection(("tests/unit",)).is_for("postgresql")


@pytest.mark.parametrize(
    ("failures", "command"),
    [
        ({"sqlite": ["tests/a.py::b"], "postgresql": []}, "make test ONLY=tests/a.py::b DATABASE=sqlite"),
        ({"sqlite": ["tests/a.py::b"], "postgresql": ["tests/a.py::b"]}, "make test ONLY=tests/a.py::b"),
        ({"sqlite": ["a::b", "a::c"], "postgresql": []}, "make test ONLY='a::b a::c' DATABASE=sqlite"),
        ({"postgresql": ["a::b", "a::c", "a::d", "a::e"]}, "make test ONLY=failed DATABASE=postgresql"),
        ({"sqlite": ["a::b[$x y]"]}, "make test ONLY=failed DATABASE=sqlite"),
    ],
)
def test_the_repeat_command_names_a_few_tests_or_all_that_failed(failures: dict[str, list[str]], command: str) -> None:
    assert runner.repeat_command(failures) == command


def test_the_last_line_of_a_failed_run_says_how_to_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / ".pytest_cache" / "sqlite" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({f"{PULL}::test_x": True}))
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    assert runner.report({"sqlite": 1, "postgresql": 0}) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"To repeat just what failed: make test ONLY={PULL}::test_x DATABASE=sqlite"


def test_a_keyword_that_matches_nothing_is_an_error() -> None:
    assert runner.report({"sqlite": 5, "postgresql": 5}) == 5
    assert runner.report({"sqlite": 0, "postgresql": 5}) == 0
    assert runner.report({}) == 1, "the requested database is missing"


def test_missing_programs_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = programs.Program("the tests on PostgreSQL", lambda: False, "apt-get install postgresql")
    there = programs.Program("the tests in a browser", lambda: True, "apt-get install chromium")
    monkeypatch.setattr(programs, "PROGRAMS", (missing, there))
    assert programs.left_out() == "Left out: the tests on PostgreSQL (apt-get install postgresql)"
    monkeypatch.setattr(programs, "PROGRAMS", (there,))
    assert programs.left_out() == ""
