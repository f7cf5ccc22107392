"""`make lint` refuses migrations that the previous release would not survive (tests/online_migrations.py)."""

from __future__ import annotations

import pytest
from django.db.migrations import Migration, operations
from django.db.migrations.operations.base import Operation
from django.db.models import BooleanField, ForeignKey, Index, IntegerField

from pushhub.common.migrations import AddColumn, AddIndexOnline
from tests.online_migrations import faults, find_faults

INDEX = Index(fields=["region"], name="delivery_region")


def migration(*steps: Operation, **attributes: object) -> Migration:
    made = Migration("0009_made", "deliveries")
    made.operations = list(steps)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def test_no_migration_breaks_the_previous_release() -> None:
    assert list(faults()) == []


@pytest.mark.parametrize(
    "step",
    [
        operations.RemoveField("delivery", "region"),
        operations.DeleteModel("Delivery"),
        operations.RenameField("delivery", "region", "place"),
        operations.RenameModel("Delivery", "Debt"),
        operations.AlterField("delivery", "attempts", IntegerField(null=True)),
        operations.AddField("delivery", "weight", IntegerField(db_default=0)),
        AddColumn("delivery", "weight", IntegerField()),
        AddColumn("delivery", "weight", IntegerField(default=0)),
        AddColumn("delivery", "weight", IntegerField(null=True, db_index=True)),
        AddColumn("delivery", "weight", IntegerField(null=True, unique=True)),
        AddColumn("delivery", "topic", ForeignKey("subscriptions.Topic", on_delete=lambda *_: None, null=True)),
        operations.AddIndex("delivery", INDEX),
        AddIndexOnline("delivery", INDEX),
        operations.RunSQL("DELETE FROM deliveries_delivery"),
        operations.RunPython(operations.RunPython.noop),
        operations.SeparateDatabaseAndState(database_operations=[operations.DeleteModel("Delivery")]),
    ],
    ids=lambda step: f"{type(step).__name__}-{step.describe()}",
)
def test_what_breaks_or_blocks_the_previous_release_is_refused(step: Operation) -> None:
    assert len(list(find_faults(migration(step)))) == 1
    assert list(find_faults(migration(step, harmless_because="0.3.0 no longer reads it"))) == []


def test_two_columns_in_one_transaction_are_refused() -> None:
    steps = [AddColumn("delivery", name, BooleanField(null=True)) for name in ("first", "second")]
    assert len(list(find_faults(migration(*steps)))) == 1
    assert list(find_faults(migration(*steps, atomic=False))) == []


def test_what_the_previous_release_does_not_notice_is_allowed() -> None:
    steps = [
        operations.CreateModel("Later", [("id", IntegerField(primary_key=True))]),
        AddColumn("delivery", "weight", IntegerField(db_default=0)),
        AddIndexOnline("delivery", INDEX),
        operations.SeparateDatabaseAndState(state_operations=[operations.RemoveField("delivery", "region")]),
    ]
    assert list(find_faults(migration(*steps, atomic=False))) == []
