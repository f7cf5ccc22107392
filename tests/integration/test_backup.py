"""A backup has every row, and both databases take it."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext, override_settings

from deliveries.backlog.connection import client_of
from deliveries.backup import restoring, saving
from deliveries.backup.tables import columns_of, content_of, models_in_order
from deliveries.management.commands import move
from deliveries.models import Message
from pushhub.common.databases import is_half_restored
from pushhub.common.datafolder import data_folder
from pushhub.common.environment import SettingError
from pushhub.doctor import database as doctor
from pushhub.doctor.finding import Level
from pushhub.runtime import processes
from pushhub.runtime.supervisor import prepare_database
from tests.databases import execute, other_database
from tests.restapi import Api
from tests.tenants import world_of_tenants


@pytest.fixture(scope="module")
def migrated(django_db_setup: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a migrated database, to copy: restoring into a copy spares the migrations, half of a restore."""
    current = connections["default"]
    with django_db_blocker.unblock(), other_database(tmp_path_factory.mktemp("migrated"), name="migrated") as database:
        # The tables come from the models, which takes an eighth of the time; all migrations are noted to have run.
        call_command("migrate", run_syncdb=True, interactive=False, verbosity=0)
        with override_settings(MIGRATION_MODULES={}):
            call_command("migrate", fake=True, interactive=False, verbosity=0)
        database.close()
        connections["default"] = current
        yield str(database.settings_dict["NAME"])


@pytest.fixture
def world(migrated: str, django_db_blocker: Any, redis_url: str, settings: Any, tmp_path: Path) -> Iterator[Api]:
    """A migrated database with rows of most kinds, among them a payload that is no text."""
    settings.MIGRATION_MODULES = {}
    with django_db_blocker.unblock(), other_database(tmp_path, name="source", template=migrated):
        world_of_tenants()
        api = Api()
        api.put("topics/orders", {})
        api.put("subscriptions/worker", {"topic": "projects/shop/topics/orders"})
        message = {"data": "/wD+", "attributes": {"text": "\u00e4\u2028\"'"}, "orderingKey": "k"}
        assert api.post("topics/orders:publish", {"messages": [message]}).status == 200
        yield api


def publish(api: Api) -> str:
    return str(api.post("topics/orders:publish", {"messages": [{"data": "aGk="}]}).body["messageIds"][0])


def backup(file: Path) -> Path:
    call_command("backup", str(file))
    return file


def contents(alias: str = "default") -> dict[str, Any]:
    tables = models_in_order(apps)
    return {model._meta.db_table: content_of(model, columns_of(model), using=alias) for model in tables}


def fail(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is full")


def test_a_restored_database_has_every_row_and_goes_on(
    world: Api, tmp_path: Path, redis_url: str, settings: Any
) -> None:
    # Given a backup, which only its owner may read
    file = backup(tmp_path / "backup")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = contents()
    assert all(before[table].rows for table in ("deliveries_message", "auth_user", "subscriptions_policy"))
    # When it is restored into an empty database
    with other_database(tmp_path, name="restored"):
        client, save = client_of(redis_url), tmp_path / "dump.rdb"
        client.set("ph:7:here:s", "of the lost database")
        client.set("another", "program's")
        save.write_bytes(b"of the lost database")
        settings.REDIS_FOLDER = tmp_path
        call_command("restore", str(file))
        # Then that has the same rows, and new ones get new ids
        assert contents() == before
        # And Redis knows nothing of before, nor will the embedded one
        assert set(client.keys()) == {b"ph:primary", b"another"}
        assert not save.exists()
        new = publish(world)
        assert world.put("topics/another", {}).status == 200
        assert Message.objects.count() == before["deliveries_message"].rows + 1
        pulled = world.post("subscriptions/worker:pull", {"maxMessages": 10}).body["receivedMessages"]
        assert new in [each["message"]["messageId"] for each in pulled]
        # And it is not restored over a database in use
        after = contents()
        with pytest.raises(CommandError, match="The database is in use: .* has rows"):
            call_command("restore", str(file))
        assert contents() == after


def test_an_interrupted_restore_goes_on_where_it_was(
    world: Api, migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = backup(tmp_path / "backup")
    before = contents()
    insert = restoring.insert_lines

    def insert_or_fail(model: Any, *arguments: Any, **options: Any) -> None:
        (fail if model._meta.db_table == "deliveries_message" else insert)(model, *arguments, **options)

    with other_database(tmp_path, name="restored", template=migrated) as database:
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "insert_lines", insert_or_fail)
            with pytest.raises(CommandError, match="^the disk is full$"):
                call_command("restore", str(file))
        # What is no part of the backup is found out
        execute(database, "UPDATE auth_user SET last_name = 'other'")
        with pytest.raises(CommandError, match="other rows than the backup in auth_user"):
            call_command("restore", str(file))
        execute(database, "UPDATE auth_user SET last_name = ''")
        call_command("restore", str(file))
        assert contents() == before


def test_pushhub_refuses_a_database_on_which_a_restore_was_interrupted(
    world: Api,
    migrated: str,
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = backup(tmp_path / "backup")
    monkeypatch.setattr(sys, "argv", ["processes", "web"])
    monkeypatch.setattr(os, "execv", lambda *_: sys.exit("started"))
    remedy = "only a part of a backup's rows.* Run `pushhub restore FILE`"
    with other_database(tmp_path, name="restored", template=migrated):
        with monkeypatch.context() as patch:
            patch.setattr(restoring, "_give_no_id_twice", fail)
            with pytest.raises(CommandError, match="^the disk is full$"):
                call_command("restore", str(file))
        with pytest.raises(SystemExit, match=remedy):
            processes.main()
        with pytest.raises(SystemCheckError, match="only a part of a backup's rows"):
            call_command("migrate", interactive=False, skip_checks=False)
        with pytest.raises(CommandError, match=remedy):
            backup(tmp_path / "another")
        capsys.readouterr()
        assert prepare_database() == 1
        assert re.fullmatch(f".*{remedy}.*", capsys.readouterr().out), "make up shows one line"
        levels = [finding.level for finding in doctor.database() if "part of a backup" in finding.text]
        assert levels == [Level.FAILED]
        call_command("restore", str(file))
        with pytest.raises(SystemExit, match="started"):
            processes.main()


def test_a_backup_of_an_older_version_is_brought_up_to_date(world: Api, tmp_path: Path) -> None:
    # Given a backup of the version before the tables of lost offers and of held regions
    before, lacking = contents(), {"deliveries_lostoffer", "deliveries_regionhold"}
    with zipfile.ZipFile(backup(tmp_path / "backup")) as new, zipfile.ZipFile(tmp_path / "older", "w") as older:
        manifest = json.loads(new.read("manifest.json"))
        leaves = dict(manifest["migrations"]) | {"deliveries": "0003_pipelinerun"}
        tables = [table for table in manifest["tables"] if table["table"] not in lacking]
        older.writestr("manifest.json", json.dumps(manifest | {"migrations": list(leaves.items()), "tables": tables}))
        for table in tables:
            older.writestr(f"{table['table']}.jsonl", new.read(f"{table['table']}.jsonl"))
    # When it is restored
    with other_database(tmp_path, name="restored"):
        call_command("restore", str(tmp_path / "older"))
        # Then the tables are those of now. Migrations add permissions for new tables
        after = contents()
        assert [after[name].rows for name in lacking] == [0, 0]
        added = {"django_content_type", "auth_permission"}
        assert {name: after[name] for name in before.keys() - added} == {
            name: before[name] for name in before.keys() - added
        }


def test_new_resources_get_no_id_of_one_that_was_deleted_before_the_backup(
    world: Api, migrated: str, tmp_path: Path
) -> None:
    # Given a message of a deleted topic, which a subscription still waits for
    for topic in ("gone", "going"):
        world.create(f"topics/{topic}")
    world.create("subscriptions/waiting", {"topic": "projects/shop/topics/going"})
    world.post("topics/going:publish", {"messages": [{"data": "c2VjcmV0"}]})
    world.delete("topics/going")
    file = backup(tmp_path / "backup")
    # When somebody else makes a topic after a restore, and looks at what it retains
    with other_database(tmp_path, name="restored", template=migrated):
        call_command("restore", str(file))
        world.create("topics/new", {"messageRetentionDuration": "86400s"})
        world.create("subscriptions/new", {"topic": "projects/shop/topics/new"})
        assert world.post("subscriptions/new:seek", {"time": "1970-01-01T00:00:00Z"}).status == 200
        # Then the message is none of it
        assert world.post("subscriptions/new:pull", {"maxMessages": 1, "returnImmediately": True}).body == {}
        assert world.post("subscriptions/waiting:pull", {"maxMessages": 1}).body["receivedMessages"]


def test_large_messages_are_read_and_inserted_a_few_at_a_time(
    world: Api, migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        publish(world)
    monkeypatch.setattr("deliveries.backup.tables.PAYLOADS_TOGETHER", 2)
    with CaptureQueriesContext(connection) as queries:
        file = backup(tmp_path / "backup")
    assert [query["sql"] for query in queries if "deliveries_message" in query["sql"] and "LIMIT 2" in query["sql"]]
    monkeypatch.setattr("deliveries.backup.tables.BYTES_TOGETHER", 1)
    together: list[int] = []
    insert = restoring.insert_lines

    def note_and_insert(model: Any, columns: Any, lines: Any, **options: Any) -> None:
        together.append(len(lines) if model._meta.db_table == "deliveries_message" else 1)
        insert(model, columns, lines, **options)

    monkeypatch.setattr(restoring, "insert_lines", note_and_insert)
    before = contents()
    with other_database(tmp_path, name="restored", template=migrated):
        call_command("restore", str(file))
        assert contents() == before
    assert max(together) == 1


def test_what_cannot_be_done_changes_nothing_and_says_why(
    world: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    file = backup(folder / "backup")
    # A file that is no backup, or one of a newer version
    cut, newer, crafted = tmp_path / "cut", tmp_path / "newer", tmp_path / "crafted"
    cut.write_bytes(file.read_bytes()[:-100])
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(newer, "w") as archive:
        manifest = json.loads(whole.read("manifest.json"))
        manifest["migrations"][-1][1] = "9999_of_tomorrow"
        archive.writestr("manifest.json", json.dumps(manifest))
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(crafted, "w") as archive:
        manifest = json.loads(whole.read("manifest.json"))
        archive.writestr("manifest.json", json.dumps(manifest | {"tables": [{"table": "no_table", "columns": []}]}))
    refused = {cut: "no whole backup", newer: "newer than this one", tmp_path / "none": "No such file"}
    for path, sentence in refused.items():
        with pytest.raises(CommandError, match=sentence):
            call_command("restore", str(path))
    with other_database(tmp_path, name="empty"), pytest.raises(CommandError, match="it lacks 'no_table'"):
        call_command("restore", str(crafted))
    # A database that is none
    with pytest.raises(CommandError, match="give postgres://"):
        call_command("move", "--to", "nonsense")
    # A folder
    with pytest.raises(CommandError, match="Is a directory"):
        backup(folder)
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []
    # A disk that is full: the last backup stays
    before = file.read_bytes()
    monkeypatch.setattr(saving, "content_of", fail)
    with pytest.raises(CommandError, match="^the disk is full$"):
        backup(file)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"backup": before}


def test_a_backup_is_not_written_through_a_link_that_somebody_else_made(world: Api, tmp_path: Path) -> None:
    victim, file = tmp_path / "victim", tmp_path / "backup.zip"
    victim.write_text("as before")
    unfinished = tmp_path / "backup.zip.unfinished"
    unfinished.symlink_to(victim)

    backup(file)

    assert victim.read_text() == "as before"
    assert zipfile.is_zipfile(file) and not file.is_symlink()
    unfinished.write_text("what a killed run left")
    unfinished.chmod(0o644)
    assert stat.S_IMODE(backup(file).stat().st_mode) == 0o600


def test_a_backup_is_not_written_where_somebody_else_was_first(
    world: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, unfinished = tmp_path / "victim", tmp_path / "backup.zip.unfinished"
    victim.write_text("as before")
    monkeypatch.setattr(Path, "unlink", lambda path, **_: None)
    unfinished.symlink_to(victim)

    with pytest.raises(CommandError, match="exists"):
        backup(tmp_path / "backup.zip")

    assert victim.read_text() == "as before"


def test_a_second_backup_to_the_same_place_is_refused(
    world: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would replace the file of the first, which then passed off a part of the second as whole."""
    file = tmp_path / "backup"

    def back_up_again(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        refused = call_from_another_connection(lambda: backup(file))
        assert isinstance(refused, CommandError) and "Another backup is being written" in str(refused)
        return content_of(*arguments, **options)

    monkeypatch.setattr(saving, "content_of", back_up_again)
    backup(file)
    assert zipfile.ZipFile(file).testzip() is None
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith("backup")} == {"backup"}


def test_a_damaged_backup_leaves_the_database_as_it_was(world: Api, tmp_path: Path) -> None:
    content = bytearray(backup(tmp_path / "backup").read_bytes())
    with zipfile.ZipFile(tmp_path / "backup") as archive:
        begin = archive.getinfo("auth_user.jsonl").header_offset + len("auth_user.jsonl") + 60
    content[begin : begin + 20] = bytes(20)
    (tmp_path / "damaged").write_bytes(content)
    with other_database(tmp_path, name="restored") as database:
        with pytest.raises(CommandError, match="no whole backup"):
            call_command("restore", str(tmp_path / "damaged"))
        assert database.introspection.table_names() == []


def test_nothing_is_restored_beside_a_pushhub_in_the_same_data_folder(
    world: Api, tmp_path: Path, settings: Any
) -> None:
    file, settings.DATA_DIR = backup(tmp_path / "backup"), tmp_path / "data"
    with other_database(tmp_path, name="restored") as database:
        with data_folder(settings.DATA_DIR), pytest.raises(SettingError, match="in use by another PushHub"):
            call_command("restore", str(file))
        assert database.introspection.table_names() == []


def test_a_backup_of_no_database_is_refused_and_makes_none(tmp_path: Path) -> None:
    with other_database(tmp_path, name="source") as database:
        if database.vendor != "sqlite":
            pytest.skip("a server of PostgreSQL says so itself")
        with pytest.raises(CommandError, match="There is no database at .*source.sqlite3"):
            backup(tmp_path / "backup")
    assert list(tmp_path.iterdir()) == []


def test_publishing_goes_on_during_a_backup(world: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup has one moment: what is published after its first read is not in it."""
    before = Message.objects.count()

    def read_and_publish(*arguments: Any, **options: Any) -> Any:
        content = content_of(*arguments, **options)
        call_from_another_connection(lambda: publish(world))
        return content

    monkeypatch.setattr(saving, "content_of", read_and_publish)
    with zipfile.ZipFile(backup(tmp_path / "backup")) as archive:
        tables = {table["table"]: table["rows"] for table in json.loads(archive.read("manifest.json"))["tables"]}
    assert tables["deliveries_message"] == before
    assert Message.objects.count() == before + len(tables)


def call_from_another_connection(call: Any) -> Any:
    """Return what a call returns in another thread, or the error that it raises."""
    config, results = connection.settings_dict, []

    def run() -> None:
        connections["default"].settings_dict = config
        try:
            results.append(call())
        except Exception as error:
            results.append(error)
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    thread.join(60)
    [result] = results
    return result


@pytest.fixture
def target(tmp_path: Path) -> Iterator[list[str]]:
    """The arguments of a move to another database."""
    yield ["--to", f"sqlite:///{tmp_path}/moved.sqlite3", "--through", str(tmp_path / "through")]
    if move.TARGET in connections.settings:
        connections[move.TARGET].close()
        del connections[move.TARGET]
        del connections.settings[move.TARGET]


def test_everything_moves_to_another_database(world: Api, tmp_path: Path, target: list[str]) -> None:
    call_command("move", *target)
    assert contents(move.TARGET) == contents()
    assert not (tmp_path / "through").exists()
    # A database in use is refused before anything is read
    with pytest.raises(CommandError, match="The database is in use: .* has rows"):
        call_command("move", *target)
    assert not (tmp_path / "through").exists()


def test_an_interrupted_move_goes_on_with_the_same_file(
    world: Api, target: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "_give_no_id_twice", fail)
        with pytest.raises(CommandError, match="^the disk is full$"):
            call_command("move", *target)
    monkeypatch.setattr(move, "save_backup", fail)
    call_command("move", *target)
    assert contents(move.TARGET) == contents()
    assert not is_half_restored(connections[move.TARGET])


def test_what_others_write_during_a_move_is_found_out(
    world: Api, target: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore_and_publish(*arguments: Any, **options: Any) -> None:
        restoring.restore_backup(*arguments, **options)
        publish(world)

    monkeypatch.setattr(move, "restore_backup", restore_and_publish)
    with pytest.raises(CommandError, match="other processes changed .*deliveries_message"):
        call_command("move", *target)
    assert is_half_restored(connections[move.TARGET]), "PushHub would start on it"
