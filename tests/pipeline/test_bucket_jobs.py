"""Replay and ingest with files in a bucket: whole commands, whose Spark tasks read from the object store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deliveries.models import Message
from pushhub.common.stores import Store
from subscriptions.services.topics import create_topic
from tests.objectstores import S3
from tests.pipeline.conftest import Run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark", "redis_url")]

TOPIC = "projects/shop/topics/orders"


def published() -> list[tuple[str, str]]:
    """The data and the kind of each message of the database, in the order of publishing."""
    rows = Message.objects.order_by("pk").values_list("data", "attributes")
    return [(bytes(data).decode(), json.loads(attributes).get("kind", "")) for data, attributes in rows]


@pytest.mark.parametrize("bucket", [S3], indirect=True, ids=["s3"])
def test_rows_of_a_bucket_are_published_archived_there_and_replayed(
    bucket: str, settings: Any, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # rejects of a bucket's files go to the current folder
    settings.ARCHIVE, settings.SPARK_MASTER = f"{bucket}/archive", "local[2]"
    create_topic(name=TOPIC, topic={})
    store = Store(f"{bucket}/rows")
    store.write_bytes("a.csv", b'body,kind\n"two\nlines",order\ntoo,many,fields\n')
    store.write_bytes("b.csv", b"body,kind\nlast,return\n")
    for day in (1, 2):
        with store.write(f"parquet/day={day}/x.parquet") as file:
            pq.write_table(pa.table({"sku": [f"A-{day}", f"B-{day}"], "kind": ["order", "return"]}), file)

    csv = ["--format", "csv", "--data-column", "body", "--attributes", "kind", "--topic", TOPIC]
    output = run("ingest", f"{store}/*.csv", *csv, "--in-order", "--rejects", "rejects")
    assert "published 2 messages, rejected 1: see rejects" in output
    [reject] = [json.loads(line) for line in Path("rejects").read_text().splitlines()]
    assert reject["file"] == "a.csv"
    assert published() == [("two\nlines", "order"), ("last", "return")]

    parquet = ["--data-column", "sku", "--attributes", "kind,day", "--topic", TOPIC]
    assert "published 4 messages, rejected 0" in run("ingest", f"{store}/parquet", *parquet)
    assert sorted(published()[2:]) == [("A-1", "order"), ("A-2", "order"), ("B-1", "return"), ("B-2", "return")]
    assert {json.loads(row.attributes).get("day") for row in Message.objects.all()} == {None, "1", "2"}

    assert "archived 6 messages" in run("archive")
    rows = published()
    Message.objects.all().delete()
    ever = ["--from", "2026-01-01T00:00:00Z", "--to", (datetime.now(UTC) + timedelta(days=2)).isoformat()]
    output = run("replay", "--topic", TOPIC, *ever, "--filter", 'attributes.kind = "order"')
    assert "published 3 messages" in output
    assert published() == [row for row in rows if row[1] == "order"]
