"""All jobs of the pipeline on a standalone cluster with authentication.

test_compose_cluster.py shows that a driver without the secret is refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deliveries.models import ArchiveFile, Delivery, Message, MetricMinute, PublishPart
from deliveries.pipeline import needs
from deliveries.publish.service import message_publish
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import topic_get
from subscriptions.services.subscriptions import subscription_create
from subscriptions.services.topics import topic_create
from tests.pipeline.ground import metrics_of, segments_make, truth_of
from tests.ports import free_port, wait_for
from tests.workers import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
SECRET = "spark.authenticate=true,spark.authenticate.secret=only-for-this-test"
SMALL = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(autouse=True)
def spark_is_installed() -> None:
    if missing := needs.missing():
        pytest.skip(missing)


@contextmanager
def daemon(kind: str, *words: str, log: Path, folder: Path) -> Iterator[None]:
    """Run a master or a worker that knows the secret."""
    import pyspark

    home = Path(pyspark.__file__).parent
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text(SECRET.replace(",", "\n").replace("=", " "))
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {' '.join('-D' + option for option in SECRET.split(','))}"
    env = os.environ | SMALL | {"SPARK_CONF_DIR": str(conf), "SPARK_DAEMON_JAVA_OPTS": options}
    env |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    name = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), name, *words], env=env, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


class Work:
    """A hundred messages to archive and replay, six rows to ingest, one of them invalid, and segments to count."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        topic_create(name=TOPIC, topic={})
        subscription_create(name=WORKER, subscription={"topic": TOPIC})
        messages = [NewMessage(str(number).encode(), {}) for number in range(100)]
        message_publish(topic=topic_get(name=TOPIC), messages=messages)
        self.rows = folder / "rows.parquet"
        bodies: list[str | None] = [f"row {number}" for number in range(5)]
        pq.write_table(pa.table({"body": [*bodies, None]}), self.rows)
        self.segments = segments_make(folder / "segments", range(4), seed=8)

    def run(self, master: str, conf: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_SPARK_MASTER": master,
            "PUSHHUB_SPARK_CONF": conf,
            "PUSHHUB_DATABASE_URL": database_url(),
            "PUSHHUB_REDIS_URL": self.redis_url,
            "PUSHHUB_SECRET_KEY": "x",
            "PUSHHUB_ARCHIVE": str(self.folder / "archive"),
            "PUSHHUB_JOURNAL": str(self.folder / "segments"),
        }
        command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.cluster_job", TOPIC, str(self.rows)]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)

    def assert_complete(self, process: subprocess.CompletedProcess[str]) -> None:
        assert process.returncode == 0, process.stderr[-3000:]
        assert json.loads(process.stdout.splitlines()[-1]) == {"archived": 100, "executors": 2}
        assert sum(row.rows for row in ArchiveFile.objects.all()) == 100
        published = Counter(bytes(row.data).decode() for row in Message.objects.all())
        once, twice = [f"row {number}" for number in range(5)], [str(number) for number in range(100)]
        assert published == Counter([*once, *twice, *twice])
        assert Delivery.objects.count() == 205
        assert PublishPart.objects.filter(job__job_id="replayed").count() > 1
        assert sum(row.rejected for row in PublishPart.objects.all()) == 1
        assert "is empty" in Path(f"{self.rows}.rejected").read_text()
        assert metrics_of(MetricMinute) == truth_of(self.segments, seconds=60)


@pytest.fixture
def work(redis_url: str, tmp_path: Path) -> Work:
    return Work(tmp_path, redis_url)


def test_all_jobs_run_on_a_standalone_cluster_with_a_secret(work: Work, tmp_path: Path) -> None:
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    log = tmp_path / "master.log"
    limits = "spark.executor.memory=512m,spark.cores.max=2,spark.executor.cores=1"
    with ExitStack() as stack:
        words = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port()))
        stack.enter_context(daemon("Master", *words, log=log, folder=tmp_path))
        wait_for(lambda: "ALIVE" in log.read_text(), what="the master")
        for number in range(2):
            work_folder = tmp_path / f"worker-{number}"
            work_folder.mkdir()
            words = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(work_folder))
            words = (*words, "--webui-port", str(free_port()), master)
            stack.enter_context(daemon("Worker", *words, log=tmp_path / f"worker-{number}.log", folder=tmp_path))
        registered = re.compile(r"Registering worker")
        wait_for(lambda: len(registered.findall(log.read_text())) == 2, what="the workers")

        work.assert_complete(work.run(master, f"{limits},{SECRET}"))
