"""The archive of Java's classes with which a Spark session starts in half of the time.

A session loads some ten thousand classes. Java can keep them, parsed and verified, in a file that later processes map.
Java itself checks that the file was made by the same Java and of the same jars, and does without it otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.pipeline import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Beside the packages that it was made of.
ARCHIVE = Path(sys.prefix) / "share" / "pushhub" / "spark-classes.jsa"
#: An archive that does not fit is no reason to write to anybody's terminal.
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xlog:class+path=off", "-Xshare:auto")


def options() -> list[str]:
    """Return Java's options to use the archive; none if it has not been made."""
    return [f"-XX:SharedArchiveFile={ARCHIVE}", *QUIET] if ARCHIVE.exists() else []


def make_archive() -> bool:
    """Make the archive, in place of an older one, of the classes that a small job loads; return whether Java could."""
    from deliveries.pipeline.session import COLLECTOR, SHORT_JOB, spark_session

    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    # Java would add to an older archive. Running sessions keep what they have opened.
    for old in ARCHIVE.parent.glob(f"{ARCHIVE.stem}.*"):
        old.unlink()
    unfinished = ARCHIVE.with_suffix(f".{os.getpid()}")
    words = " ".join([f'"-XX:ArchiveClassesAtExit={unfinished}"', *QUIET, COLLECTOR, SHORT_JOB])
    session = spark_session("classes", master="local[2]", extra={"spark.driver.extraJavaOptions": words})
    gateway = session.sparkContext._gateway
    assert gateway is not None
    try:
        with tempfile.TemporaryDirectory() as folder:
            run_job(session, Path(folder))
    finally:
        session.stop()
        # Java writes the archive while it ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
    if not unfinished.exists():
        return False
    # Java ends with a fault if an archive lacks its end, so all of it must be on the disk before it has its name.
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.rename(ARCHIVE)
    return True


def run_job(session: SparkSession, folder: Path) -> None:
    """Write, read, filter, group and join rows, in Java and in Python, as the pipeline does."""
    rows = session.range(100).selectExpr("id", "id % 7 AS kind", "now() AS at", "string(id) AS text")
    rows.write.partitionBy("kind").parquet(str(folder / "rows"))
    read = session.read.parquet(str(folder / "rows")).where("id > 3 AND text LIKE '1%'")
    counts = read.groupBy("kind").count()
    counts.join(read, "kind").orderBy("id").toArrow()
    read.mapInArrow(lambda batches: batches, read.schema).toPandas()


def main() -> None:
    parser = argparse.ArgumentParser(description=f"Make {ARCHIVE}, with which Spark starts in half of the time.")
    parser.parse_args()
    if lacking := needs.missing():
        sys.exit(lacking)
    try:
        reason = "" if make_archive() else "this Java has no archive of its own classes to add to"
    except Exception as error:
        reason = str(error).partition("\n")[0]
    if reason:
        sys.exit(f"not done, so Spark starts more slowly: {reason}")
    print("done")  # noqa: T201


if __name__ == "__main__":
    main()
