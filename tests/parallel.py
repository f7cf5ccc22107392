"""Runs tests in processes that are forked once all tests are collected: `pytest -p tests.parallel --processes=5`.

To import and to collect all tests takes as much CPU as a thousand of them. Each process has settings, folders and a
database of its own. It asks for a group of tests whenever it has none left, and tells what becomes of each test.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from django.conf import settings

from tests import preloaded
from tests.background import busy_file_remove
from tests.scheduling import COMPUTING_PROCESSES, Groups

#: Plugins that only the first process needs: they print, and keep what failed.
FIRST_ONLY = ("terminalreporter", "lfplugin", "nfplugin")
#: How long a process may take to notice Ctrl-C by itself, before it is told.
INTERRUPT_SECONDS = 1.0


@dataclass
class Process:
    """A forked process, and the numbers of the tests that it was given and has not finished."""

    number: int
    pid: int
    connection: Connection
    tests: list[int] = field(default_factory=list)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=0, help="how many processes run tests; 0: this one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.processes or option.collectonly or session.testsfailed:
        return None
    Run(session).run(option.processes)
    return True


class Run:
    """The run as the first process sees it."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._groups = Groups([item.nodeid for item in session.items])
        self._processes: dict[Connection, Process] = {}
        self._problems: list[str] = []

    def run(self, count: int) -> None:
        """Run all tests. Raises Failed if a process ended badly or, with -x, at the first failed test."""
        # A fork has only the thread that called it, but also the locks that others hold.
        assert threading.active_count() == 1, threading.enumerate()
        # All of them work in its folder, and fork workers and servers from the same process.
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        if settings.configured:
            preloaded.start()
        try:
            for number in range(min(count, len(self._groups))):
                self._fork(number)
            while self._processes:
                for connection in wait(list(self._processes)):
                    assert isinstance(connection, Connection)
                    self._listen(self._processes[connection])
        finally:
            self._interrupt()
        if self._groups:
            self._problems.append("no process is left for the other tests")
        if self._problems:
            self._session.shouldfail = "; ".join(self._problems)
            raise self._session.Failed(self._session.shouldfail)

    def _fork(self, number: int) -> None:
        connection, other = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            connection.close()
            for process in self._processes.values():
                process.connection.close()
            _be_process(self._session, number, other)
        other.close()
        self._processes[connection] = Process(number, pid, connection)

    def _listen(self, process: Process) -> None:
        """Do what the next message of a process asks for, or note its end."""
        try:
            kind, values = process.connection.recv()
        except (EOFError, ConnectionResetError):
            self._end(process)
            return
        if kind == "next":
            process.tests = self._groups.take(prefers_waiting=process.number >= COMPUTING_PROCESSES)
            process.connection.send(list(process.tests))
            if not self._groups:
                busy_file_remove()
        elif kind == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=values)
            self._hook.pytest_runtest_logreport(report=report)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)
        elif kind == "start":
            self._hook.pytest_runtest_logstart(**values)
        else:
            process.tests.pop(0)
            self._hook.pytest_runtest_logfinish(**values)

    def _end(self, process: Process) -> None:
        """Note that a process has ended. The test at which it did has failed, and others get the tests that it had."""
        process.connection.close()
        del self._processes[process.connection]
        status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        if status:
            self._problems.append(f"process {process.number} ended with {status}")
        if process.tests:
            number, *others = process.tests
            self._groups.give_back(others)
            item = self._session.items[number]
            report = pytest.TestReport(
                item.nodeid, item.location, {}, "failed", f"its process ended with {status}", "call"
            )
            self._hook.pytest_runtest_logreport(report=report)

    def _interrupt(self) -> None:
        """End the processes that are left at an error or Ctrl-C, and wait until they have cleaned up."""
        give_up = time.monotonic() + INTERRUPT_SECONDS
        while self._processes and (seconds := give_up - time.monotonic()) > 0:
            for connection in wait(list(self._processes), seconds):
                assert isinstance(connection, Connection)
                with suppress(Exception):
                    connection.recv()
                    continue
                os.waitpid(self._processes.pop(connection).pid, 0)
        for process in self._processes.values():
            os.kill(process.pid, signal.SIGINT)
        for process in self._processes.values():
            process.connection.close()
            os.waitpid(process.pid, 0)


class Reporter:
    """Tells the first process what becomes of each test."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection

    def next_tests(self) -> list[int]:
        """Return the numbers of the tests of a group, or of none if there is no group left."""
        self._connection.send(("next", None))
        numbers: list[int] = self._connection.recv()
        return numbers

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._connection.send(("start", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data: Mapping[str, Any] = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._connection.send(("finish", {"nodeid": nodeid, "location": location}))


def _be_process(session: pytest.Session, number: int, connection: Connection) -> NoReturn:
    status = 1
    try:
        reporter = Reporter(session.config, connection)
        _begin_anew(session.config, f"process{number}")
        session.config.pluginmanager.register(reporter)
        try:
            _run_tests(session, reporter)
        except KeyboardInterrupt:
            # The first process may tell of a Ctrl-C that came here, too.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise
        finally:
            session._setupstate.teardown_exact(None)
            session.config._ensure_unconfigure()
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_tests(session: pytest.Session, reporter: Reporter) -> None:
    while numbers := reporter.next_tests():
        items = [session.items[number] for number in numbers]
        # What belongs to the session outlives the group.
        for item, following in zip(items, [*items[1:], session], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                return


def _begin_anew(config: Any, name: str) -> None:
    """Part with what the processes would share: the files of the output, folders and settings."""
    for plugin in FIRST_ONLY:
        config.pluginmanager.unregister(name=plugin)
    if capture := config.pluginmanager.getplugin("capturemanager"):
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture(in_=True)
    # pytest-django names the database after it.
    config.workerinput = {"workerid": name}
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    if settings.configured:
        preloaded.share()
        preloaded.settings_read_again()
