"""The process that test_cluster.py starts: it archives, replays, ingests and counts on the Spark master it is given."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")


def main(topic: str, rows: str) -> None:
    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    from deliveries.pipeline.archiving import archive
    from deliveries.pipeline.publishing import placing
    from deliveries.pipeline.session import spark_session
    from deliveries.telemetry.counting.rollup import Rollup

    archive.RANGE_ROWS = placing.PART_ROWS = 20
    session = spark_session(
        "cluster test", master=settings.SPARK_MASTER, memory="512m", extra=settings.SPARK_CONF, short=True
    )
    archived = archive.Archiver(Path(settings.ARCHIVE), session=session).run().messages
    now = datetime.now(UTC)
    time_range = ["--from", (now - timedelta(hours=1)).isoformat(), "--to", (now + timedelta(hours=1)).isoformat()]
    call_command("pipeline", "replay", "--topic", topic, *time_range, "--id", "replayed")
    call_command("pipeline", "ingest", rows, "--topic", topic, "--data-column", "body", "--id", "ingested")
    Rollup(Path(settings.JOURNAL), session=session).once()
    executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    driver = session.conf.get("spark.driver.host")
    session.stop()
    print(json.dumps({"archived": archived, "executors": executors, "driver": driver}))


if __name__ == "__main__":
    main(*sys.argv[1:])
