"""The supervisor's parts: ports, the data folder, and a crew of small real processes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from deliveries.pipeline import needs
from pushhub.common.environment import SettingError, StartError
from pushhub.runtime import crew as crews
from pushhub.runtime import supervisor
from pushhub.runtime.crew import Crew
from pushhub.runtime.forking import Child
from pushhub.runtime.processes import Process
from tests.endtoend.running import environment, start
from tests.ports import free_port, wait_for


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(crews, "FIRST_PROBE_SECONDS", 0.01)


@pytest.fixture
def output() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def crew(output: io.StringIO) -> Iterator[Crew]:
    before = set(psutil.Process().children(recursive=True))
    crew = Crew(output)
    yield crew
    crew.stop()
    assert set(psutil.Process().children(recursive=True)) == before


def script(name: str, source: str, *, is_ready: bool = True, is_base: bool = False) -> Process:
    return Process(name, f"the {name}", [sys.executable, "-c", source], "here", lambda: is_ready, is_base=is_base)


def turn_until(crew: Crew, output: io.StringIO, *texts: str) -> str:
    """Run the crew until all the texts were printed, and return everything printed."""

    def all_printed() -> bool:
        crew.turn(0.02)
        return all(text in output.getvalue() for text in texts)

    wait_for(all_printed, what=repr(texts))
    return output.getvalue()


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


SLEEP = "import time; print('hello', flush=True); time.sleep(600)"


def test_lines_are_printed_with_the_name_of_their_process(crew: Crew, output: io.StringIO) -> None:
    crew.start(script("one", SLEEP))
    printed = turn_until(crew, output, "hello", "ready")
    assert " one         | hello\n" in printed
    assert " pushhub     | ready: the one here\n" in printed
    assert "\x1b" not in printed


def test_a_process_that_dies_is_started_again(crew: Crew, output: io.StringIO, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    source = f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"
    crew.start(script("one", source))
    turn_until(crew, output, "ready: the one")
    first = wait_for(lambda: pids.exists() and pids.read_text().split())[0]
    os.kill(int(first), 9)
    printed = turn_until(crew, output, "ready again: the one")
    assert "the one ended (signal 9): starting it again in 0.0 s" in printed
    wait_for(lambda: len(pids.read_text().split()) == 2)


def test_a_process_that_cannot_be_run_is_tried_again(
    crew: Crew, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [BlockingIOError(errno.EAGAIN, "too many processes")]
    start_process = crews.start_process

    def fail_once(*arguments: Any) -> Child:
        if errors:
            raise errors.pop()
        return start_process(*arguments)

    monkeypatch.setattr(crews, "start_process", fail_once)
    crew.start(script("one", SLEEP))
    printed = turn_until(crew, output, "ready: the one here")
    assert "one         | cannot be run: [Errno 11] too many processes" in printed
    assert "the one ended (status 71): starting it again" in printed


def test_a_program_that_does_not_exist_is_named(crew: Crew, output: io.StringIO) -> None:
    crew.start(Process("one", "the one", ["/nowhere/program"], "here", lambda: False))
    turn_until(crew, output, "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/program'")


def test_what_a_process_writes_last_and_in_pieces_is_printed(crew: Crew, output: io.StringIO) -> None:
    pieces = "import os, time; os.write(1, b'a \\xff '); time.sleep(0.1); os.write(2, b'b\\nlast')"
    crew.start(script("one", f"{pieces}; os.close(1); os.close(2); time.sleep(0.1)"))
    turn_until(crew, output, "one         | a \ufffd b\n", "one         | last\n", "the one ended (status 0)")


def test_the_error_of_a_probe_is_told(crew: Crew) -> None:
    def is_ready() -> bool:
        raise RuntimeError("of the test")

    crew.start(Process("one", "the one", [sys.executable, "-c", SLEEP], "here", is_ready))

    def is_told() -> bool:
        crew.turn(0.02)
        return crew.not_ready() == "the one does not answer (RuntimeError: of the test)"

    wait_for(is_told)


def test_children_that_a_dead_process_leaves_are_ended(crew: Crew, output: io.StringIO, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); open(sys.argv[1], 'w').write(str(p.pid))"
    crew.start(Process("one", "the one", [sys.executable, "-c", child, str(pid)], "here", lambda: False))
    turn_until(crew, output, "the one ended")
    wait_for(lambda: not is_alive(int(pid.read_text())))


def test_a_process_that_never_starts_is_given_up(crew: Crew) -> None:
    crew.start(script("one", "raise SystemExit(3)", is_ready=False))
    with pytest.raises(StartError, match=r"the one ended 3 times \(status 3\) and was never ready"):
        wait_for(lambda: crew.turn(0.05))


def test_the_others_go_on_without_an_optional_process_that_cannot_start(crew: Crew, output: io.StringIO) -> None:
    optional = Process("two", "the two", [sys.executable, "-c", "exit(3)"], "here", lambda: False, is_optional=True)
    crew.start(optional)
    crew.start(script("one", SLEEP))
    printed = turn_until(crew, output, "ready: the one", "PushHub goes on without it")
    assert "the two ended 3 times (status 3) and was never ready: see its lines above; PushHub goes on" in printed
    assert crew.is_ready()


def test_a_stop_waits_for_slow_processes_and_ends_the_base_last(crew: Crew, output: io.StringIO) -> None:
    slow = textwrap.dedent("""
        import signal, sys, time
        def end(*_):
            time.sleep(0.3)
            print("bye from", sys.argv[1], flush=True)
            sys.exit()
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        time.sleep(600)
    """)
    for name, is_base in (("base", True), ("one", False), ("two", False)):
        command = [sys.executable, "-c", slow, name]
        crew.start(Process(name, f"the {name}", command, "here", lambda: True, is_base=is_base))
    turn_until(crew, output, "base        | up", "one         | up", "two         | up")
    crew.stop()
    printed = output.getvalue()
    assert printed.index("bye from base") > max(printed.index("bye from one"), printed.index("bye from two"))


def test_the_processes_of_a_killed_supervisor_end_too(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    supervisor_source = textwrap.dedent("""
        import sys
        from pushhub.runtime.crew import Crew
        from pushhub.runtime.processes import Process
        source = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} '); time.sleep(600)"
        crew = Crew()
        crew.start(Process("one", "the one", [sys.executable, "-c", source, sys.argv[1]], "here", lambda: True))
        crew.keep()
    """)
    command = [sys.executable, "-c", supervisor_source, str(pid)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: pid.exists() and pid.read_text().endswith(" "), what="the process")
        process.kill()
    wait_for(lambda: not is_alive(int(pid.read_text())), what="the end of the process")


def test_a_second_stop_request_kills_processes_that_are_slow_to_end(crew: Crew, output: io.StringIO) -> None:
    # Given a process that ignores the signal, and would end by itself later
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('hello', flush=True); "
    crew.start(script("one", deaf + "time.sleep(15); print('went by itself', flush=True)"))
    turn_until(crew, output, "hello")
    # When the stop is requested twice
    crew.ask_to_stop()
    timer = threading.Timer(0.3, crew.ask_to_stop)
    timer.start()
    crew.stop()
    timer.join()
    # Then the process is killed before it ends by itself
    assert "went by itself" not in output.getvalue()


def test_a_taken_port_is_refused_with_the_setting_that_moves_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = rf"port {port} on 127\.0\.0\.1 is taken: .*PUSHHUB_FLOWER=127\.0\.0\.1:{port + 1}$"
        with pytest.raises(StartError, match=line):
            supervisor.require_free_port("FLOWER", ("127.0.0.1", port))
    supervisor.require_free_port("FLOWER", ("127.0.0.1", free_port()))


def test_each_server_needs_a_port_of_its_own() -> None:
    address = ("127.0.0.1", free_port())
    with pytest.raises(StartError, match="PUSHHUB_HTTP and PUSHHUB_GRPC are the same address: give each a port"):
        supervisor.require_free_ports({"HTTP": address, "FLOWER": ("127.0.0.1", free_port()), "GRPC": address})


def test_a_data_folder_serves_one_supervisor_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with supervisor.data_folder(folder):
        assert folder.stat().st_mode & 0o777 == 0o700
        with pytest.raises(SettingError, match="in use by another PushHub"), supervisor.data_folder(folder):
            pass
    with supervisor.data_folder(folder):
        pass


def test_a_database_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    process = start(environment(tmp_path / "data", PUSHHUB_DATABASE_URL=url))
    assert process.returncode == 1
    assert "PushHub cannot start: the database cannot be used (" in process.stderr
    assert "; PUSHHUB_DATABASE_URL names it" in process.stderr
    assert "Traceback" not in process.stdout + process.stderr


def test_a_database_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "data" / "pushhub.sqlite3"
    file.parent.mkdir()
    file.write_text("this is no database" * 100)
    process = start(environment(file.parent))
    assert process.returncode == 1
    assert f"PushHub cannot start: the database cannot be used (file is not a database); it is {file}" in process.stderr


def test_an_existing_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with supervisor.data_folder(tmp_path):
        assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["DATA", "SECRET_KEY", "SECRET_KEY_FILE"])
def test_a_secret_key_is_created_if_none_is_set(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds with the development mode off, which `make up` allows."""
    (tmp_path / "given").write_text("a key")
    for variable in ("PUSHHUB_ANONYMOUS", "PUSHHUB_SECRET_KEY", "PUSHHUB_SECRET_KEY_FILE", "PYTHONUNBUFFERED"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("PUSHHUB_DEVELOPMENT", "off")
    monkeypatch.setenv("PUSHHUB_DATA", str(tmp_path))
    if name != "DATA":
        monkeypatch.setenv(f"PUSHHUB_{name}", str(tmp_path / "given"))

    supervisor.prepare_environment()

    assert (tmp_path / "secret-key").exists() == (name == "DATA")


@pytest.mark.parametrize(
    ("is_development", "line"),
    [
        (True, "development mode: projects are created at their first use, http"),
        (False, "production mode: projects must be created before their first use, http"),
    ],
)
def test_the_mode_is_printed(is_development: bool, line: str, settings: Any) -> None:
    settings.DEVELOPMENT = is_development
    assert supervisor.modes_text().startswith(line)


def test_an_unusable_data_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SettingError, match=r"cannot use the data folder .*PUSHHUB_DATA"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(supervisor.data_folder(tmp_path / "file" / "data"))


@pytest.mark.parametrize(
    ("journal", "spark", "missing", "started", "line"),
    [
        ("/data/segments", True, "", ["rollup"], ""),
        ("/data/segments", True, "no Java found: install it", [], "the embedded counter counts attempts"),
        ("/data/segments", True, "no Java found: install it", [], "and not Spark: no Java found: install it"),
        ("/data/segments", False, "", [], "and not Spark: PUSHHUB_SPARK is off"),
        ("", True, "", [], "not counted into metrics: PUSHHUB_JOURNAL is off"),
    ],
)
def test_the_rollup_is_started_if_it_can_run(
    journal: str,
    spark: bool,
    missing: str,
    started: list[str],
    line: str,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a machine with or without Java, then the rollup is started, or one line says why it is not."""
    settings.JOURNAL = journal
    settings.SPARK = spark
    monkeypatch.setattr(needs, "missing", lambda: missing)
    monkeypatch.setattr(needs, "has_own_environment", lambda: False)
    output = io.StringIO()

    assert supervisor.rollup_names(Crew(output)) == started

    assert line in output.getvalue()
    assert output.getvalue().count("\n") == (1 if line else 0)
