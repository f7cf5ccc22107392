"""What the test of clusters runs in a process of its own: one archive run on the master that it is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")


def main(root: str) -> None:
    django.setup()
    from django.conf import settings

    from deliveries.pipeline import archive
    from deliveries.pipeline.session import spark_session

    archive.RANGE_ROWS = 20
    session = spark_session(
        "cluster test", master=settings.SPARK_MASTER, memory="512m", extra=settings.SPARK_CONF, short=True
    )
    done = archive.Archiver(Path(root), session=session).run(closed_ms=-1000)
    executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    print(f"{done.messages} messages, {executors} executors")
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
