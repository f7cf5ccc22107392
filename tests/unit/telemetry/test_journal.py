"""The journal: what is appended is sealed, whatever happens to the process, and a full disk stops nothing else."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deliveries.rules.ids import publish_time_ms
from deliveries.telemetry.journal import alarm, files, sealing
from deliveries.telemetry.journal.columns import Rows, table_of
from deliveries.telemetry.journal.journal import Journal, NoSpace, OpenJournal
from tests.ports import wait_for

#: Journals without a whole line: what a writer leaves that dies at once, and foreign content.
NO_LINES = [b"", b"garbage\n", b"[1]\n", b'{"count":1,"columns":{"message_id":[]},"shared":{}}\n', b'{"count":1,"col']
MESSAGE_ID = 911_742_875_595_837_440


def events(count: int, *, first: int = 0) -> Rows:
    ids = [str(MESSAGE_ID + first + number) for number in range(count)]
    return Rows(count, {"message_id": ids, "latency_us": list(range(count))}, {"event": "push", "time": 1_000_000})


def segments(folder: Path) -> list[Path]:
    return sorted((folder / files.SEALED).rglob("[!.]*.parquet"))


def message_ids(folder: Path) -> list[int]:
    ids = []
    for path in segments(folder):
        ids += [int(name) for name in pq.read_table(path)["message_id"].to_pylist()]
    return sorted(ids)


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the alarms that were raised and cleared, recorded in place of Redis."""
    told: list[Any] = []
    monkeypatch.setattr(alarm, "sound", lambda **words: told.append(words))
    monkeypatch.setattr(alarm, "clear", lambda: told.append("clear"))
    return told


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 64 KiB: writes fail as they do on a full disk, after a part has been written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_segment_has_all_columns_and_knows_the_publish_time() -> None:
    """Given events of two kinds, when they become a table, then shared values are repeated and the rest is null."""
    publish = Rows(1, {"message_id": [str(MESSAGE_ID)]}, {"event": "publish", "time": 5, "topic": "t"})

    rows = table_of([events(2), publish]).to_pylist()

    assert [row["event"] for row in rows] == ["push", "push", "publish"]
    assert [row["topic"] for row in rows] == [None, None, "t"]
    assert rows[0]["publish_time"].timestamp() * 1000 == publish_time_ms(MESSAGE_ID)
    assert [row["response_class"] for row in rows] == ["internal", "internal", None]
    assert rows[2]["schema_version"] == 1


def test_what_is_appended_can_be_sealed_after_its_time(tmp_path: Path, alarms: list[Any]) -> None:
    """Given a journal with events, when its time is over, then other processes can seal it."""
    journal = Journal(tmp_path, keep_free=0, close_seconds=0.2)
    for first in range(0, 30, 10):
        journal.append([events(10, first=first)])

    wait_for(lambda: sealing.seal_closed(tmp_path), what="a closed journal")
    journal.close()

    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(30)]
    assert files.journals(tmp_path) == []
    assert not alarms


def test_a_journal_ends_by_rows(tmp_path: Path, alarms: list[Any]) -> None:
    """Given more rows than a segment should have, when they are written, then it ends before its time."""
    journal = Journal(tmp_path, keep_free=0, close_seconds=3600)
    for first in range(0, 30_000, 1000):
        journal.append([events(1000, first=first)])

    wait_for(lambda: sealing.seal_closed(tmp_path), what="a closed journal")
    journal.close()
    sealing.seal_closed(tmp_path)

    assert len(segments(tmp_path)) == 2
    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(30_000)]


def test_a_journal_that_is_sealed_before_it_is_locked_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a sealer that finds a new journal before its writer has locked it, when rows follow, then none is lost."""
    sealed = []

    def open_and_seal(path: Path, flags: int, mode: int = 0o777) -> int:
        handle = os_open(path, flags, mode)
        if flags & os.O_CREAT and not sealed:
            sealed.append(sealing.seal_closed(tmp_path))
        return handle

    os_open = os.open
    monkeypatch.setattr(os, "open", open_and_seal)

    journal = OpenJournal(tmp_path, number=1, keep_free=0)
    journal.append(events(10).line(), 10)
    assert sealing.seal_closed(tmp_path) == 0, "its writer holds the lock"
    journal.close()
    sealing.seal_closed(tmp_path)

    assert sealed == [1]
    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(10)]


def test_the_journal_of_a_killed_process_is_sealed_by_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Given a process killed in the middle of its journal, when another seals it, then it has every whole line."""
    script = (
        "import sys, os, signal\nfrom pathlib import Path\n"
        "from tests.unit.telemetry.test_journal import events, OpenJournal\n"
        "journal = OpenJournal(Path(sys.argv[1]), number=1, keep_free=0)\n"
        "journal.append(events(500).line(), 500)\njournal.append(events(500, first=500).line(), 500)\n"
        "print('written', flush=True)\nsignal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"written\n"
        assert sealing.seal_closed(tmp_path) == 0, "its writer lives"
    finally:
        process.kill()
        process.communicate()
    with files.journals(tmp_path)[0].open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 10)

    assert sealing.seal_closed(tmp_path) == 1

    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(500)]
    assert files.journals(tmp_path) == []
    assert not caplog.records, "a truncated end is not an error"


def test_a_journal_that_cannot_be_sealed_keeps_no_others_back(tmp_path: Path) -> None:
    """Given a journal that cannot be opened and a foreign file, then the other is sealed, and the error is raised."""
    journal = OpenJournal(tmp_path, number=1, keep_free=0)
    journal.append(events(10).line(), 10)
    journal.close()
    (tmp_path / files.OPEN / "a-1-0000000000001-1.journal").mkdir()
    foreign = tmp_path / files.OPEN / "copy of a.journal"
    foreign.write_bytes(events(1).line())

    with pytest.raises(IsADirectoryError):
        sealing.seal_closed(tmp_path)

    assert len(message_ids(tmp_path)) == 10
    assert foreign.exists()


def test_sealing_again_writes_the_same_file(tmp_path: Path) -> None:
    """Given a crash between a segment's rename and its journal's end, when it is sealed again, no event doubles."""
    journal = OpenJournal(tmp_path, number=1, keep_free=0)
    journal.append(events(10).line(), 10)
    journal.close()
    kept = journal.path.read_bytes()
    sealing.seal_closed(tmp_path)
    before = segments(tmp_path)[0].read_bytes()

    journal.path.write_bytes(kept)
    sealing.seal_closed(tmp_path)

    assert [path.read_bytes() for path in segments(tmp_path)] == [before]


@pytest.mark.parametrize("content", NO_LINES)
def test_a_journal_without_a_whole_line_ends_as_no_segment(tmp_path: Path, content: bytes) -> None:
    """Given a journal whose writer died at once, when it is sealed, then it is gone and there is no segment."""
    path = files.journal_path(tmp_path, files.journal_name(opened_ms=1_700_000_000_000, number=1))
    path.parent.mkdir(parents=True)
    path.write_bytes(content)

    sealing.seal_closed(tmp_path)

    assert segments(tmp_path) == []
    assert not path.exists()


@pytest.mark.parametrize(
    "odd",
    [
        Rows(1, {"message_id": ["by hand"]}, {"event": "push", "time": 1}),
        Rows(1, {"message_id": [str(MESSAGE_ID)], "attempt": [2**40]}, {"event": "push", "time": 1}),
        Rows(1, {"message_id": [str(MESSAGE_ID)]}, {"event": "push", "time": "noon"}),
    ],
)
def test_events_that_fit_no_column_keep_no_others_back(tmp_path: Path, odd: Rows) -> None:
    """Given a line of events with a value that its column cannot have, then all other lines and journals are sealed."""
    for number in (1, 2):
        journal = OpenJournal(tmp_path, number=number, keep_free=0)
        journal.append(events(1, first=10 * number).line(), 1)
        journal.append(odd.line(), 1)
        journal.append(events(1, first=10 * number + 1).line(), 1)
        journal.close()

    assert sealing.seal_closed(tmp_path) == 2

    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in (10, 11, 20, 21)]
    assert files.journals(tmp_path) == []


def test_a_full_disk_stops_the_journal_and_never_blocks_appending(
    tmp_path: Path, alarms: list[Any], small_files: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk that fills up, when events go on, then they are counted, the alarm sounds and what was written
    before is whole; when there is room again, then the journal goes on.
    """
    monkeypatch.setattr("deliveries.telemetry.journal.journal.RETRY_SECONDS", 0.2)
    journal = Journal(tmp_path, keep_free=0, close_seconds=3600)
    journal.append([events(100)])
    wait_for(lambda: files.journals(tmp_path), what="the journal")
    journal.append([events(10, first=100), events(5000, first=110)])
    wait_for(lambda: journal.trouble, what="the alarm")

    assert journal.lost == 5010
    assert alarms[0]["reason"] == "File too large"
    assert sealing.seal_closed(tmp_path) == 1
    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(100)]

    wait_for(lambda: "clear" in alarms, what="the end of the alarm")
    journal.append([events(1, first=7000)])
    journal.close()
    sealing.seal_closed(tmp_path)
    assert MESSAGE_ID + 7000 in message_ids(tmp_path)


def test_a_disk_that_turns_read_only_raises_the_alarm(
    tmp_path: Path, alarms: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a disk on which an empty journal can be neither written nor removed, then the alarm sounds all the same."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    journal = Journal(tmp_path, keep_free=0)
    with monkeypatch.context() as patches:
        patches.setattr(OpenJournal, "append", fail)
        patches.setattr(Path, "unlink", fail)
        journal.append([events(10)])
        wait_for(lambda: alarms, what="the alarm")
        assert (journal.trouble, journal.lost) == ("Read-only file system", 10)
        journal.close()


def test_events_that_a_slow_disk_has_no_time_for_are_told(
    tmp_path: Path, alarms: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given a write that takes long, when more events come than may wait, then the log says how many are lost."""
    monkeypatch.setattr("deliveries.telemetry.journal.journal.MAX_WAITING", 5)
    is_slow, goes_on = threading.Event(), threading.Event()
    write = OpenJournal.append

    def append(self: OpenJournal, lines: bytes, rows: int) -> None:
        is_slow.set()
        goes_on.wait(60)
        write(self, lines, rows)

    monkeypatch.setattr(OpenJournal, "append", append)
    journal = Journal(tmp_path, keep_free=0, close_seconds=3600)
    journal.append([events(1)])
    wait_for(is_slow.is_set, what="the write")
    for _ in range(3):
        journal.append([events(6)])
    goes_on.set()
    journal.close()

    assert [record.message for record in caplog.records] == ["the journal goes on; 12 events were not written down"]
    assert journal.lost == 0


def test_the_journal_leaves_room_for_the_database(tmp_path: Path) -> None:
    """Given less free disk than is kept for the database, when a journal is opened, then it is refused."""
    with pytest.raises(NoSpace, match="are free on the disk"):
        OpenJournal(tmp_path, number=1, keep_free=2**62)


def test_an_event_that_cannot_be_written_takes_no_others_with_it(tmp_path: Path, alarms: list[Any]) -> None:
    """Given an event of a wrong type, when others follow, then those are written."""
    journal = Journal(tmp_path, keep_free=0, close_seconds=3600)
    journal.append([Rows(1, {"message_id": [object()]})])
    assert journal.lost == 1
    journal.append([events(1)])
    journal.close()
    sealing.seal_closed(tmp_path)

    assert message_ids(tmp_path) == [MESSAGE_ID]


@pytest.mark.parametrize("is_closing", [False, True], ids=["running", "closing"])
def test_an_unexpected_error_loses_no_event(
    tmp_path: Path, alarms: list[Any], monkeypatch: pytest.MonkeyPatch, is_closing: bool
) -> None:
    """Given a write that fails in an unknown way, once, when the journal goes on, then it has every event once."""
    errors = [RuntimeError("of the test")]
    write = OpenJournal.append

    def append(self: OpenJournal, lines: bytes, rows: int) -> None:
        if errors:
            raise errors.pop()
        write(self, lines, rows)

    monkeypatch.setattr(OpenJournal, "append", append)
    journal = Journal(tmp_path, keep_free=0, close_seconds=3600)
    journal.append([events(10)])
    if not is_closing:
        wait_for(lambda: not errors, what="the error")
        journal.append([events(10, first=10)])
    journal.close()
    sealing.seal_closed(tmp_path)

    assert message_ids(tmp_path) == [MESSAGE_ID + number for number in range(10 if is_closing else 20)]


@pytest.mark.parametrize("call", ["sound", "clear"])
def test_an_alarm_that_fails_does_not_end_the_journal(
    tmp_path: Path, alarms: list[Any], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Given an alarm that fails in an unknown way, when there is room again, then the journal goes on."""
    errors = [RuntimeError("of the test")]
    told = getattr(alarm, call)

    def fail(**words: Any) -> None:
        if errors:
            raise errors.pop()
        told(**words)

    monkeypatch.setattr(alarm, call, fail)
    monkeypatch.setattr("deliveries.telemetry.journal.journal.RETRY_SECONDS", 0.05)
    journal = Journal(tmp_path, keep_free=2**62, close_seconds=3600)
    journal.append([events(1)])
    wait_for(lambda: journal.trouble, what="the trouble")
    monkeypatch.setattr(journal, "_keep_free", 0)
    wait_for(lambda: not journal.trouble, what="the end of it")
    journal.append([events(1, first=1)])
    journal.close()
    sealing.seal_closed(tmp_path)

    assert not errors
    assert message_ids(tmp_path) == [MESSAGE_ID + 1]


@pytest.mark.parametrize("name", ["x.parquet", ".host-1-1700000000000-1.parquet", "host-1-17-1.parquet", "a.csv"])
def test_foreign_files_are_not_taken_for_segments(name: str) -> None:
    assert not files.is_segment_name(name)
    assert files.is_segment_name("host-1-1700000000000-1.parquet")
