"""The driver that tests/pipeline/spread.py starts on a cluster: it does every job once, and prints the seconds of
each and the address on which it listened.

python -m tests.pipeline.spread_job FOLDER MESSAGES
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
PROJECTS, FILES, KEYS = 4, 8, 97
TOPIC = "projects/p{}/topics/orders"


def main(folder: Path, messages: int) -> None:
    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    from deliveries.pipeline.archiving.archive import Archiver
    from deliveries.pipeline.publishing import parts
    from deliveries.pipeline.session import spark_session
    from deliveries.telemetry.counting.rollup import Rollup

    share = messages // PROJECTS
    parts.PART_ROWS = max(share // 16, 1)
    session = spark_session("spread", master=settings.SPARK_MASTER, memory="512m", extra=settings.SPARK_CONF)
    secret = settings.SPARK_CONF["spark.authenticate.secret"]
    gateway: Any = session.sparkContext._gateway
    assert secret.encode() not in Path(f"/proc/{gateway.proc.pid}/cmdline").read_bytes()
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        session.sparkContext.setJobDescription(name)
        began = time.monotonic()
        yield
        seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began

    with timed("warm-up"):
        session.range(0, 1000, 1, 16).mapInArrow(lambda batches: batches, "id long").count()
    archiver = Archiver(settings.ARCHIVE, session=session)
    for _ in range(2):
        publish(messages // 2)
        with timed("archive"):
            archiver.run()
    with timed("compaction"):
        archiver.compact()
    now = datetime.now(UTC)
    time_range = ["--from", (now - timedelta(hours=1)).isoformat(), "--to", (now + timedelta(hours=1)).isoformat()]
    with timed("replay"):
        call_command("pipeline", "replay", "--topic", TOPIC.format(0), *time_range)
    with timed("ingest"):
        call_command("pipeline", "ingest", str(folder / "rows"), "--format", "json", "--topic", TOPIC.format(1))
    with timed("ingest by key"):
        words = ["--format", "json", "--topic", TOPIC.format(2), "--ordering-key-column", "key", "--id", "keyed"]
        call_command("pipeline", "ingest", str(folder / "rows"), *words)
    with timed("rollup"):
        Rollup(folder / "segments", session=session).once()
    driver = session.conf.get("spark.driver.host")
    session.stop()
    print(json.dumps({"seconds": seconds, "driver": driver}))


def publish(count: int) -> None:
    """Publish messages of every key to a topic of each project."""
    from deliveries.publish.service import publish_message
    from deliveries.rules.payload import NewMessage
    from subscriptions.models import Topic
    from subscriptions.selectors import get_topic
    from subscriptions.services.topics import create_topic

    for project in range(PROJECTS):
        if not Topic.objects.filter(project__project_id=f"p{project}").exists():
            create_topic(name=TOPIC.format(project), topic={})
        topic = get_topic(name=TOPIC.format(project))
        for start in range(0, count // PROJECTS, 1000):
            numbers = range(start, min(start + 1000, count // PROJECTS))
            rows = [NewMessage(b'{"n": %d, "text": "%b"}' % (n, b"x" * 200), {}, f"k{n % KEYS}") for n in numbers]
            publish_message(topic=topic, messages=rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
