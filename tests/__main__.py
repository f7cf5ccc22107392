"""What `make test` runs after the checks: every test on SQLite, and on PostgreSQL those that touch the database.

ONLY in the environment chooses tests: paths, pytest's node ids, a keyword, or `failed` for those that failed last.
DATABASE, `sqlite` or `postgresql`, chooses one database.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.background import BackgroundCommand
from tests.programs import IN_CI, left_out, postgresql_programs
from tests.scheduling import COMPUTING_PROCESSES, WAITING_PROCESSES

ROOT = Path(__file__).parent.parent
DATABASES = ("sqlite", "postgresql")
#: The tiers that run on PostgreSQL too; within them, only tests that touch the database do.
POSTGRESQL_TIERS = ("tests/integration", "tests/security")
#: pytest's exit statuses for "all passed" and "no test was selected".
PASSED, NONE_SELECTED = 0, 5
#: The exit status after Ctrl-C.
INTERRUPTED = 130
#: A command that names more tests than this is too long to read.
MOST_NAMED = 3


@dataclass(frozen=True)
class Selection:
    """The tests that ONLY chooses: all of them if `words` is empty."""

    words: tuple[str, ...] = ()

    def arguments(self, database: str) -> list[str]:
        """Return pytest's arguments for this selection on `database`."""
        tiers = list(POSTGRESQL_TIERS) if database == "postgresql" else ["tests"]
        if self.words == ("failed",):
            return ["--last-failed", "--last-failed-no-failures=none", *tiers]
        paths = [word for word in self.words if (ROOT / word.partition("::")[0]).exists()]
        keywords = [word for word in self.words if word not in paths]
        if database == "postgresql" and paths:
            # With DATABASE=postgresql any tests may be named.
            tiers = [path for path in paths if path.startswith(POSTGRESQL_TIERS)] or paths
        elif paths:
            tiers = paths
        return [*(["-k", " ".join(keywords)] if keywords else []), *tiers]

    def is_for(self, database: str) -> bool:
        """Return whether any of the paths runs on `database`."""
        paths = [word for word in self.words if (ROOT / word.partition("::")[0]).exists()]
        return database == "sqlite" or not paths or any(path.startswith(POSTGRESQL_TIERS) for path in paths)

    def workers(self) -> int:
        """Return the number of processes; 0 for a single test."""
        return 0 if any("::" in word for word in self.words) else COMPUTING_PROCESSES + WAITING_PROCESSES


def pytest_command(database: str, selection: Selection) -> list[str]:
    cache = ROOT / ".pytest_cache" / database
    # Another process would be given the test during which one ended, and end as well.
    options = [f"--numprocesses={selection.workers()}", "--max-worker-restart=0", "-o", f"cache_dir={cache}"]
    options.append("--tb=short")  # otherwise libraries' long functions crowd out what failed
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        options.append("--color=yes")
    server = ["-m", "tests.with_postgresql", sys.executable] if database == "postgresql" else []
    return [sys.executable, *server, "-m", "pytest", "-q", *options, *selection.arguments(database)]


def run_on(databases: Sequence[str], selection: Selection) -> dict[str, int]:
    """Run the selected tests on all databases at once, as many of them wait, and return pytest's exit statuses."""
    # Tests start hundreds of processes, and without bytecode each compiles its modules anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    commands: dict[str, BackgroundCommand] = {}
    with TemporaryDirectory(prefix="pushhub-tests-") as folder, ExitStack() as all_end:
        for database in databases:
            command = BackgroundCommand(
                f"tests on {database}",
                pytest_command(database, selection),
                folder=Path(folder),
                is_shown=not commands,
            )
            commands[database] = all_end.enter_context(command)
        return {database: command.finish() for database, command in commands.items()}


def failed_on(database: str) -> list[str]:
    """Return the ids of the tests that failed last on `database`."""
    path = ROOT / ".pytest_cache" / database / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.exists() else []


def repeat_command(failures: dict[str, list[str]]) -> str:
    """Return the shortest command that runs only the failed tests again."""
    tests = sorted({test for failed in failures.values() for test in failed})
    is_plain = not any(character in test for test in tests for character in "$'\"\\ ")
    only = " ".join(tests) if len(tests) <= MOST_NAMED and is_plain else "failed"
    databases = [database for database, failed in failures.items() if failed]
    return f"make test ONLY={shlex.quote(only)}" + (f" DATABASE={databases[0]}" if len(databases) == 1 else "")


def main() -> int:
    selection = Selection(tuple(os.environ.get("ONLY", "").split()))
    only_database = os.environ.get("DATABASE")
    if only_database and only_database not in DATABASES:
        print(f"DATABASE={only_database}: give one of {', '.join(DATABASES)}", file=sys.stderr)
        return 2
    databases = [only_database] if only_database else [name for name in DATABASES if selection.is_for(name)]
    if postgresql_programs() is None and not IN_CI:
        databases = [name for name in databases if name != "postgresql"]
    started = time.monotonic()
    try:
        statuses = run_on(databases, selection)
    except KeyboardInterrupt:
        return INTERRUPTED
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    print(f"\nran on {' and '.join(databases)} in {minutes} min {seconds} s")
    if notice := left_out():
        print(notice)
    return report(statuses)


def report(statuses: dict[str, int]) -> int:
    """Print how to repeat the failed tests, and return the exit status of the whole run."""
    if set(statuses.values()) == {NONE_SELECTED}:
        print("no test matches ONLY", file=sys.stderr)
        return NONE_SELECTED
    good_statuses = (PASSED, NONE_SELECTED)
    failures = {database: failed_on(database) for database, status in statuses.items() if status not in good_statuses}
    if not failures:
        return 0 if statuses else 1
    if any(failures.values()):
        print(f"To repeat just what failed: {repeat_command(failures)}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
