"""The archive's folder, without Spark: its owner, its verification, and a manifest that is rebuilt from its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from deliveries.models import ArchivedMessage, ArchiveFile, ArchiveLeftover
from deliveries.pipeline.archiving import files
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.archiving.files import adopt, verify
from deliveries.pipeline.archiving.manifest import read_manifest
from deliveries.store import statements
from pushhub.common.stores import Store
from tests.pipeline.ground import archived_table, pages_damage

pytestmark = pytest.mark.django_db(transaction=True)

FOLDER = "project=shop/dt=2026-11-21"


def archive_file(root: Path, name: str, ids: list[int]) -> str:
    """Write a file of the archive; return its path in the manifest."""
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(archived_table(ids), path, compression="zstd")
    return f"{FOLDER}/{name}"


def manifest_row(root: Path, path: str, ids: list[int]) -> ArchiveFile:
    size = (root / path).stat().st_size if (root / path).exists() else 1
    return ArchiveFile.objects.create(path=path, first_id=min(ids), last_id=max(ids), rows=len(ids), bytes=size)


def paths() -> set[str]:
    return set(ArchiveFile.objects.values_list("path", flat=True))


def test_verify_names_what_is_missing_damaged_and_unknown(tmp_path: Path) -> None:
    good = archive_file(tmp_path, "1-9-aaaaaaaaaaaa-0.parquet", [*range(1, 10)])
    damaged = archive_file(tmp_path, "10-900-bbbbbbbbbbbb-0.parquet", [*range(10, 900)])
    short = archive_file(tmp_path, "901-903-cccccccccccc-0.parquet", [901, 902])
    unknown = archive_file(tmp_path, "1000-1001-dddddddddddd-0.parquet", [1000, 1001])
    manifest_row(tmp_path, good, [*range(1, 10)])
    manifest_row(tmp_path, damaged, [*range(10, 900)])
    manifest_row(tmp_path, short, [901, 902, 903])
    manifest_row(tmp_path, f"{FOLDER}/5-6-eeeeeeeeeeee-0.parquet", [5, 6])
    pages_damage(tmp_path / damaged)

    report = verify(tmp_path)

    assert (report.files, report.messages) == (1, 9)
    assert report.missing == [f"{FOLDER}/5-6-eeeeeeeeeeee-0.parquet"]
    assert [path for path, _ in report.damaged] == [damaged, short]
    assert report.damaged[1][1] == "it has 2 rows instead of 3"
    assert report.unknown == [unknown]
    assert len(paths()) == 4, "nothing is changed"


def test_adopt_takes_each_message_once_and_deletes_no_file(tmp_path: Path) -> None:
    """Given a compacted file, one that it replaced, one that overlaps with it, a damaged, a foreign and a missing one,
    when the folder is adopted, then the manifest has each message once, and messages of the database are noted.
    """
    whole = archive_file(tmp_path, "1-40-aaaaaaaaaaaa-0.parquet", [*range(1, 41)])
    replaced = archive_file(tmp_path, "1-20-bbbbbbbbbbbb-0.parquet", [*range(1, 21)])
    overlapping = archive_file(tmp_path, "31-50-2.parquet", [*range(31, 51)])
    damaged = archive_file(tmp_path, "100-900-cccccccccccc-0.parquet", [*range(100, 900)])
    pages_damage(tmp_path / damaged)
    foreign = tmp_path / FOLDER / "part-0.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    manifest_row(tmp_path, replaced, [*range(1, 21)])
    manifest_row(tmp_path, damaged, [*range(100, 900)])
    manifest_row(tmp_path, f"{FOLDER}/5-6-eeeeeeeeeeee-0.parquet", [5, 6])
    statements.insert_messages([(message_id, 1, "local", b"x", "", "") for message_id in (40, 45, 60)])
    ArchivedMessage.objects.create(message_id=60, write_id=0)
    before = set(tmp_path.rglob("*.parquet"))

    adopted = adopt(tmp_path)

    assert paths() == {whole, overlapping}
    assert sorted(adopted.added) == sorted([whole, overlapping])
    assert (adopted.redundant, adopted.repeated) == ([replaced], 10)
    assert sorted(adopted.dropped) == sorted([damaged, f"{FOLDER}/5-6-eeeeeeeeeeee-0.parquet"])
    assert [path for path, _ in adopted.foreign] == [f"{FOLDER}/part-0.parquet"]
    assert set(tmp_path.rglob("*.parquet")) == before
    row = ArchiveFile.objects.get(path=overlapping)
    assert (row.first_id, row.last_id, row.rows) == (31, 50, 20)
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == {40, 45}
    assert verify(tmp_path).missing == []


def test_an_archive_of_an_older_release_gets_its_manifest(tmp_path: Path) -> None:
    path = archive_file(tmp_path, "1-9-aaaaaaaaaaaa-0.parquet", [*range(1, 10)])
    manifest_row(tmp_path, path, [*range(1, 10)])
    assert read_manifest(Store(tmp_path)) == []
    files.require_listing(Store(tmp_path))
    [row] = read_manifest(Store(tmp_path))
    assert (row.path, row.first_id, row.last_id, row.last_step) == (path, 1, 9, 0)

    ArchiveFile.objects.all().delete()
    files.require_listing(Store(tmp_path))
    assert read_manifest(Store(tmp_path)) == [row], "an existing manifest stays"


def test_the_commands_need_no_spark(
    tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deliveries.pipeline.needs.missing", lambda: "no Java found")
    settings.ARCHIVE = str(tmp_path)
    path = archive_file(tmp_path, "1-9-aaaaaaaaaaaa-0.parquet", [*range(1, 10)])

    call_command("pipeline", "archive", "verify")
    assert f"1 not in the manifest, and left alone:\n  {path}" in capsys.readouterr().out
    call_command("pipeline", "archive", "adopt")
    assert f"1 added to the manifest:\n  {path}" in capsys.readouterr().out
    call_command("pipeline", "archive", "verify")
    assert "1 files with 9 messages are as the manifest says" in capsys.readouterr().out
    (tmp_path / path).unlink()
    with pytest.raises(CommandError, match="1 files of the manifest are missing"):
        call_command("pipeline", "archive", "verify")
    with pytest.raises(CommandError, match="no Java found"):
        call_command("pipeline", "archive")
    with pytest.raises(CommandError, match="goes with adopt only"):
        call_command("pipeline", "archive", "verify", "--take-over")


def test_long_lists_are_shortened(tmp_path: Path, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.ARCHIVE = str(tmp_path)
    for number in range(25):
        archive_file(tmp_path, f"{number}-{number}-aaaaaaaaaaaa-0.parquet", [number])

    call_command("pipeline", "archive", "verify")

    assert "and 5 more" in capsys.readouterr().out
    assert files.verify(tmp_path).files == 0


def test_a_killed_write_releases_no_claims_of_the_database_that_this_one_was_moved_from(tmp_path: Path) -> None:
    """Given a database whose ids begin again, and claims of earlier writes with its next ids, when a write is given up,
    then those messages are archived still.
    """
    last = ArchiveLeftover.objects.create(token="before").pk
    ArchiveLeftover.objects.all().delete()
    ArchivedMessage.objects.bulk_create(
        ArchivedMessage(message_id=number, write_id=last + number) for number in range(1, 5)
    )
    archiver = Archiver(tmp_path, session=None)  # type: ignore[arg-type]

    archiver._write_begin()
    archiver.sweep()

    assert ArchivedMessage.objects.count() == 4
