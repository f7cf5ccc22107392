"""An archive and rows for an ingest follow the same rules in a bucket, on S3 or Cloud Storage, as in a folder."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command

from deliveries.models import ArchiveFile, ArchiveLeftover, ArchiveOwner
from deliveries.pipeline.archiving import files
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.archiving.locks import no_readers, only_archiver, reading
from deliveries.pipeline.archiving.manifest import ManifestFile, read_manifest, write_manifest
from deliveries.pipeline.jobs import ingest, sources
from deliveries.pipeline.jobs.messages import Columns
from deliveries.pipeline.jobs.reading import Reading, read_files
from deliveries.pipeline.jobs.rows import USUAL, csv_header
from deliveries.pipeline.jobs.spans import LAST, WHOLE, Span
from pushhub.common import stores
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.stores import Store
from tests.objectstores import BUCKET, SECRET, STORES, ObjectStore
from tests.pipeline.ground import archived_table
from tests.ports import free_port

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

FOLDER = "project=shop/dt=2026-11-21"


@pytest.fixture(scope="module", params=STORES, ids=lambda kind: kind.scheme)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a bucket that all tests share, so each has a folder of its own in it."""
    kind: ObjectStore = request.param
    port = free_port()
    with pytest.MonkeyPatch.context() as patch, kind.server(port):
        for name, value in kind.environment(port).items():
            patch.setenv(name, value)
        stores._filesystem.cache_clear()
        yield f"{kind.scheme}://{BUCKET}"
    stores._filesystem.cache_clear()


@pytest.fixture
def archive(bucket: str, settings: Any, tmp_path: Path) -> str:
    """The address of an archive that has no files yet."""
    settings.DATA_DIR = tmp_path
    settings.ARCHIVE = f"{bucket}/{tmp_path.name}/archive"
    return str(settings.ARCHIVE)


def archive_file(archive: str, name: str, ids: list[int]) -> str:
    with Store(archive).write(f"{FOLDER}/{name}") as file:
        pq.write_table(archived_table(ids, step=[message_id // 10 for message_id in ids]), file)
    return f"{FOLDER}/{name}"


def paths(address: str) -> set[str]:
    return {file.name for file in Store(address).files() if file.name.endswith(".parquet")}


def test_files_are_written_read_listed_and_deleted(archive: str) -> None:
    store = Store(f"{archive}/")
    assert list(store.files()) == []
    assert store.read_text("none") == ""
    with pytest.raises(FileNotFoundError):
        store.size("none")
    store.write_bytes("b/two", b"22")
    store.write_bytes("a", b"1")
    store.write_bytes("a", b"one")
    assert [(file.name, file.bytes) for file in store.files()] == [("a", 3), ("b/two", 2)]
    assert [file.name for file in store.files("b")] == ["b/two"]
    assert (store.read_text("a"), store.exists("a"), store.exists("b"), store.size("b/two")) == ("one", True, False, 2)
    store.delete("a")
    store.delete("a")
    assert [file.name for file in store.files()] == ["b/two"]


def test_an_archive_is_adopted_and_verified(archive: str, settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive_file(archive, "1-29-aaaaaaaaaaaa-0.parquet", [*range(10, 30)])
    replaced = archive_file(archive, "1-9-bbbbbbbbbbbb-0.parquet", [*range(12, 20)])
    Store(archive).write_bytes(f"{FOLDER}/part-0.parquet", b"somebody else's")

    call_command("pipeline", "archive", "adopt")
    assert f"1 added to the manifest:\n  {path}" in capsys.readouterr().out
    call_command("pipeline", "archive", "verify")
    assert "1 files with 20 messages are as the manifest says" in capsys.readouterr().out
    [row] = read_manifest(Store(archive))
    assert (row.path, row.first_step, row.last_step, row.rows) == (path, 1, 2, 20)
    assert {path, replaced, f"{FOLDER}/part-0.parquet"} == paths(archive), "no file is deleted"

    Store(archive).delete(path)
    with pytest.raises(CommandError, match="1 files of the manifest are missing"):
        call_command("pipeline", "archive", "verify")
    assert path in capsys.readouterr().out


def test_a_second_archiver_and_another_deployment_are_refused(archive: str) -> None:
    with (
        only_archiver(archive),
        pytest.raises(FailedPrecondition, match=f"Another archiver works on {archive}"),
        only_archiver(archive),
    ):
        pass
    with only_archiver(archive):
        pass
    ArchiveOwner.objects.update(identity="0" * 32)
    with pytest.raises(FailedPrecondition, match="another deployment"), only_archiver(archive):
        pass
    with only_archiver(archive, take_over=True):
        pass
    with only_archiver(archive), only_archiver(f"{archive}-2"):
        pass


def test_replaced_files_stay_while_the_archive_is_read(archive: str) -> None:
    with reading(archive), reading(archive):
        with no_readers(archive) as are_gone:
            assert not are_gone
        with no_readers(f"{archive}-2") as are_gone:
            assert are_gone
    with no_readers(archive) as are_gone:
        assert are_gone


def test_a_sweep_deletes_only_what_a_recorded_write_left(archive: str) -> None:
    """Given files of a killed write, files of the manifest and foreign files, then only the first are deleted."""
    kept = archive_file(archive, "1-9-aaaaaaaaaaaa-0.parquet", [*range(1, 10)])
    foreign = archive_file(archive, "10-19-bbbbbbbbbbbb-0.parquet", [*range(10, 20)])
    leftover = archive_file(archive, "20-29-cccccccccccc-0.parquet", [*range(20, 30)])
    ArchiveFile.objects.create(path=kept, first_id=1, last_id=9, rows=9, bytes=1)
    ArchiveLeftover.objects.create(token="cccccccccccc")
    archiver = Archiver(archive, session=None)  # type: ignore[arg-type]

    assert archiver.sweep() == 1
    assert paths(archive) == {kept, foreign}
    assert leftover not in paths(archive)
    assert [row.path for row in read_manifest(Store(archive))] == [kept]

    Store(archive).delete(kept)
    ArchiveLeftover.objects.create(token="bbbbbbbbbbbb")
    with pytest.raises(FailedPrecondition, match="older backup.*Nothing was deleted"):
        archiver.sweep()
    assert paths(archive) == {foreign}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"s3://key:{SECRET}@bucket/archive", "has credentials or settings in it"),
        (f"s3://bucket/archive?secret_key={SECRET}", "has credentials or settings in it"),
        ("s3:///archive", "names no bucket"),
        ("ftp://host/archive", "There are no files at ftp://"),
    ],
)
def test_an_address_must_name_a_bucket_and_hold_no_secret(
    address: str, message: str, settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.ARCHIVE = address
    with pytest.raises(InvalidArgument, match=message):
        files.verify(address)
    with pytest.raises(CommandError, match=message) as refused:
        call_command("pipeline", "archive", "verify")
    assert SECRET not in str(refused.value) + "".join(capsys.readouterr())


def test_the_error_of_a_store_is_one_line_without_the_secret(
    archive: str, settings: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings.ARCHIVE = f"{archive.partition('://')[0]}://no-such-bucket/archive"
    with caplog.at_level(logging.DEBUG), pytest.raises(CommandError, match="no-such-bucket") as refused:
        call_command("pipeline", "archive", "verify")
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value) + "".join(capsys.readouterr()) + caplog.text


def test_rows_are_read_from_a_bucket_as_from_a_folder(archive: str) -> None:
    """Given files in several folders, compressed and not, then a source may be a file, a folder or a pattern."""
    store = Store(archive.removesuffix("archive") + "rows")
    store.write_bytes("a.csv", b'body,kind\n"two\nlines",k\n')
    store.write_bytes("deep/b.csv.gz", gzip.compress(b"body,kind\nb,\nc\n"))
    store.write_bytes("a.csv.rejected", b"x")
    store.write_bytes("_hidden/c.csv", b"body\nx\n")

    files = sources.files_of(str(store), form="csv")
    assert [file.name for file in files] == ["a.csv", "b.csv.gz"]
    assert [file.name for file in sources.files_of(f"{store}/*.csv", form="csv")] == ["a.csv"]
    assert [file.name for file in sources.files_of(f"{store}/deep/*.csv.gz", form="csv")] == ["b.csv.gz"]
    assert [file.name for file in sources.files_of(f"{store}/**/*.gz", form="csv")] == ["b.csv.gz"]
    assert sources.files_of(f"{store}/a.csv", form="csv") == [files[0]]
    before = sources.content_of(files[1])
    store.write_bytes("deep/b.csv.gz", gzip.compress(b"body,kind\nb,\nd\n"))
    assert sources.content_of(files[1]) != before
    assert csv_header(files[1]) == ["body", "kind"]

    parts = [{"part": n, "path": str(file), "first": 0, "last": LAST, "line": 1} for n, file in enumerate(files)]
    batches = read_files(iter([pa.RecordBatch.from_pylist(parts)]), reading=Reading("csv", Columns(data="body")))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["file"], row["data"], bool(row["reason"])) for row in rows] == [
        ("a.csv", b"two\nlines", False),
        ("b.csv.gz", b"b", False),
        ("b.csv.gz", b"", True),
    ]
    with pytest.raises(InvalidArgument, match="there is no such file"):
        sources.files_of(f"{store}/none", form="csv")


def test_parquet_files_are_read_from_a_bucket_as_from_a_folder(archive: str) -> None:
    """Given Parquet files in a folder per day, then rows have the day as a column, and a span can be read alone."""
    store = Store(archive.removesuffix("archive") + "rows")
    for day in (1, 2):
        rows = pa.table({"body": [f"{day} {n}" for n in range(4)], "n": pa.array(range(4), pa.uint8())})
        with store.write(f"day={day}/x.parquet") as file:
            pq.write_table(rows, file, row_group_size=2)

    files = sources.files_of(str(store), form="parquet")
    base = sources.base_of(f"{store}/", files)
    assert [sources.folders_of(file, base) for file in files] == [{"day": "1"}, {"day": "2"}]
    assert sources.base_of(f"{store}/*/x.parquet", files) == sources.base_of(str(files[0]), files[:1]) == ""
    heads = sources.heads_of(files, form="parquet", dialect=USUAL)
    assert [(head.columns, head.spans, head.rows) for head in heads] == [(["body", "n"], [Span(0, 2)], 4)] * 2
    sources.check_columns(files, heads, form="parquet", columns=Columns("body", ["day"]), base=base)
    reading = Reading("parquet", Columns(), base=base, kinds=sources.folder_kinds(files, base))
    whole = [ingest.Part(number, file, WHOLE) for number, file in enumerate(files)]
    assert ingest.count_rows(None, whole, heads, reading) == 8  # type: ignore[arg-type]

    parts = [{"part": n, "path": str(file), "first": 1, "last": 2, "line": 1} for n, file in enumerate(files)]
    read = [
        row for batch in read_files([pa.RecordBatch.from_pylist(parts)], reading=reading) for row in batch.to_pylist()
    ]
    assert [(row["part"], row["row"], row["file"], row["line"], row["data"]) for row in read] == [
        (day - 1, n - 1, "x.parquet", None, b'{"body":"%d %d","n":%d,"day":%d}' % (day, n, n, day))
        for day in (1, 2)
        for n in (2, 3)
    ]
    store.write_bytes("day=3/x.parquet", b"none")
    with pytest.raises(InvalidArgument, match=r"day=3/x\.parquet cannot be read as parquet"):
        sources.heads_of(sources.files_of(str(store), form="parquet"), form="parquet", dialect=USUAL)


def test_an_archive_in_a_bucket_has_the_files_of_its_manifest(archive: str) -> None:
    store = Store(archive)
    for name in ("project=p/dt=2026-11-21/1-2-a-0.parquet", "project=p/dt=2026-11-21/replaced.parquet"):
        store.write_bytes(name, b"")
    write_manifest(store, [ManifestFile("project=p/dt=2026-11-21/1-2-a-0.parquet", 1, 2, 1, 1, 2, 0)])
    [file] = sources.files_of(archive, form="parquet")
    assert file.name == "1-2-a-0.parquet"
    assert sources.base_of(archive, [file]) == archive
