"""Every command of docs/pipeline.md works, in the order of the page."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from pytest_django.live_server_helper import LiveServer

from deliveries.models import Message, PublishJob
from deliveries.telemetry.journal import journal as journals
from subscriptions.cli.main import main
from tests.workers import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.django_db(transaction=True)

BLOCK = re.compile(r"^```(?P<language>sh|sql|python)\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.fixture
def reader(
    spark: SparkSession, redis_url: str, live_server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> Iterator[None]:  # fmt: skip
    """Set up the folder, the server and the settings that the page assumes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    settings.DEVELOPMENT, settings.ANONYMOUS = True, "user:developer@localhost"
    settings.ARCHIVE, settings.JOURNAL = (str(tmp_path / ".pushhub" / name) for name in ("archive", "segments"))
    settings.SPARK_MASTER = "local[2]"
    # All tests share the session and the signal handlers.
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    if (journal := journals.journal()) is not None:
        journal.close()
    journals._journal_of.cache_clear()


def run(language: str, text: str) -> list[Any]:
    """Run a block of the page; return the rows of a query."""
    if language == "sql":
        import duckdb

        with duckdb.connect() as duck:
            return duck.execute(text).fetchall()
    if language == "python":
        exec(compile(text, "docs/pipeline.md", "exec"), {})
        return []
    for line in text.splitlines():
        words = shlex.split(line)
        if words[:2] == ["manage.py", "pubsub"]:
            assert main(words[1:]) == 0
        elif words[0] == "manage.py":
            call_command(*words[1:])
        else:
            subprocess.run(["bash", "-euc", line], check=True, timeout=600)
    return []


def test_every_command_of_the_page_works(reader: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Given the page, when its blocks are run from the first to the last, then each does what the text says."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    blocks = [(match["language"], match["text"]) for match in BLOCK.finditer(page)]
    assert len(blocks) == 10

    answers = [rows for language, text in blocks if (rows := run(language, text))]

    topic = "projects/demo/topics/orders"
    assert answers == [[(topic, "order", "A-1"), (topic, "return", "B-7")]]
    jobs = {job.job_id.split()[0]: job for job in PublishJob.objects.exclude(finished_at=None)}
    assert jobs.keys() == {"replay", "ingest", "again"}
    published = [bytes(row.data).decode() for row in Message.objects.order_by("pk")]
    first, second = '{"sku": "A-1", "total": 12}', '{"sku": "B-7", "total": 40}'
    assert published == [first, second, first, "first", "second", first, first, '{"sku": "A-1"}', '{"sku": "A-2"}']
    assert Path("report.html").read_text().startswith("<!doctype html>")
    output = capsys.readouterr().out
    for words in ("archived 2 messages in", "are as the manifest says", "published 2 messages, rejected 0"):
        assert words in output
