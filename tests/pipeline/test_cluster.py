"""The Spark cluster of docker-compose.yml in another network, as if on other machines: it runs every job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from deliveries.models import ArchiveFile, Delivery, Message, MetricMinute, PublishPart
from deliveries.pipeline import classarchive, needs
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.pipeline.ground import QUICK_JAVA, metrics_of, segments_make, truth_of
from tests.ports import free_port, wait_for
from tests.workers import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
#: The web pages of the master and the workers get free ports.
PAGES = {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}
#: Two small executors, one with each worker.
SMALL = "spark.cores.max=2,spark.executor.cores=1,spark.executor.memory=512m"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    if missing := needs.missing():
        pytest.skip(missing)
    services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return services


@contextmanager
def network_namespace() -> Iterator[tuple[list[str], str, str]]:
    """Create a network with a loopback device of its own.

    Yield the words that start a command in it, its address, and the address of this process as seen from it. Where
    namespaces are forbidden, its address is another one of this machine's loopback device.
    """
    link, net = f"ph{os.getpid()}", f"10.231.{os.getpid() % 250}"
    holder = subprocess.Popen(["unshare", "--net", "sleep", "1800"], stderr=subprocess.DEVNULL)
    inside = ["nsenter", "--target", str(holder.pid), "--net"]
    try:
        wait_for(lambda: holder.poll() is not None or is_apart(holder.pid), what="the namespace")
        commands = [
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "far", "netns", str(holder.pid)],
            ["ip", "address", "add", f"{net}.1/30", "dev", link],
            ["ip", "link", "set", link, "up"],
            [*inside, "ip", "link", "set", "lo", "up"],
            [*inside, "ip", "address", "add", f"{net}.2/30", "dev", "far"],
            [*inside, "ip", "link", "set", "far", "up"],
        ]
        if holder.poll() is None and all(succeeds(command) for command in commands):
            yield inside, f"{net}.2", f"{net}.1"
        else:
            yield [], "127.0.0.2", "127.0.0.1"
    finally:
        holder.kill()
        holder.wait()


def is_apart(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


class Cluster:
    """The master and two workers of the compose file, in a network of their own, until the block ends."""

    def __init__(self, compose: dict[str, Any], folder: Path) -> None:
        self._compose = compose
        self._folder = folder
        self.secret = folder / "secret"
        self.secret.write_text("only-for-this-test")
        self._stack = ExitStack()

    def __enter__(self) -> Cluster:
        with self._stack:
            self._inside, self._address, self.driver_address = self._stack.enter_context(network_namespace())
            self._port = str(free_port())
            self._start("spark-master", ready="ALIVE")
            for number in range(2):
                self._start("spark-worker", ready="Successfully registered", number=number)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"spark://{self._address}:{self._port}"

    def _start(self, name: str, *, ready: str, number: int = 0) -> None:
        log = self._folder / f"{name}-{number}.log"
        self._stack.enter_context(self._service(name, log=log, number=number))
        wait_for(lambda: ready in log.read_text(), what=name)

    @contextmanager
    def _service(self, name: str, *, log: Path, number: int) -> Iterator[None]:
        """Run a service of the compose file with paths, ports and sizes of this test."""
        replaced = {
            "spark-master": self._address,
            "7077": self._port,
            "/run/secrets/spark_secret": str(self.secret),
            "/tmp/work": str(self._folder / f"work-{number}"),
            "3g": "1g",
        }

        def local(text: str) -> str:
            for old, new in replaced.items():
                text = text.replace(old, new)
            return text

        command = [local(word).replace("$$", "$") for word in self._compose[name]["command"]]
        env = os.environ | {key: local(value) for key, value in self._compose[name]["environment"].items()} | PAGES
        env["SPARK_DAEMON_JAVA_OPTS"] += f" {QUICK_JAVA}"
        # PATH is as in the image. SPARK_CONF_DIR keeps out the settings of another test's session. There is no such
        # folder, as in the image, because Java would use no archive of classes with another class path.
        env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "SPARK_CONF_DIR": str(self._folder / "none")}
        env["SPARK_LOCAL_IP"] = self._address
        with log.open("w") as output:
            process = subprocess.Popen([*self._inside, *command], env=env, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=60)


class Work:
    """A hundred messages to archive and replay, six rows to ingest, one of them invalid, and segments to count."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        create_topic(name=TOPIC, topic={})
        create_subscription(name=WORKER, subscription={"topic": TOPIC})
        messages = [NewMessage(str(number).encode(), {}) for number in range(100)]
        publish_message(topic=get_topic(name=TOPIC), messages=messages)
        self.rows = folder / "rows.parquet"
        bodies: list[str | None] = [f"row {number}" for number in range(5)]
        pq.write_table(pa.table({"body": [*bodies, None]}), self.rows)
        self.segments = segments_make(folder / "segments", range(4), seed=8)

    def run(self, master: str, *, conf: str, secret_file: str) -> subprocess.CompletedProcess[str]:
        """Do all of it in a process that knows the master's address and, if there is one, the secret."""
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_SPARK_MASTER": master,
            "PUSHHUB_SPARK_CONF": f"{conf},{SMALL},spark.executor.extraJavaOptions={QUICK_JAVA}",
            "PUSHHUB_SPARK_SECRET_FILE": secret_file,
            "PUSHHUB_DATABASE_URL": database_url(),
            "PUSHHUB_REDIS_URL": self.redis_url,
            "PUSHHUB_SECRET_KEY": "x",
            "PUSHHUB_ARCHIVE": str(self.folder / "archive"),
            "PUSHHUB_JOURNAL": str(self.folder / "segments"),
        }
        command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.cluster_job", TOPIC, str(self.rows)]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)

    def assert_complete(self) -> None:
        assert sum(row.rows for row in ArchiveFile.objects.all()) == 100
        published = Counter(bytes(row.data).decode() for row in Message.objects.all())
        once, twice = [f"row {number}" for number in range(5)], [str(number) for number in range(100)]
        assert published == Counter([*once, *twice, *twice])
        assert Delivery.objects.count() == 205
        assert PublishPart.objects.filter(job__job_id="replayed").count() > 1
        assert sum(row.rejected for row in PublishPart.objects.all()) == 1
        assert "is empty" in Path(f"{self.rows}.rejected").read_text()
        assert metrics_of(MetricMinute) == truth_of(self.segments, seconds=60)


def test_a_cluster_on_other_machines_runs_every_job(compose: dict[str, Any], redis_url: str, tmp_path: Path) -> None:
    """Given the master and two workers of the compose file in a network of their own, and a driver that knows only the
    master's address, then its jobs run on both workers; a driver without the secret is refused.
    """
    work, conf = Work(tmp_path, redis_url), compose["rollup"]["environment"]["PUSHHUB_SPARK_CONF"]
    # The driver without the secret tries for a minute, meanwhile the other one works.
    with Cluster(compose, tmp_path) as cluster, ThreadPoolExecutor() as pool:
        refused = pool.submit(work.run, cluster.url, conf=conf, secret_file="")
        process = work.run(cluster.url, conf=conf, secret_file=str(cluster.secret))

    assert refused.result().returncode != 0, refused.result().stdout
    assert "All masters are unresponsive" in refused.result().stderr
    assert process.returncode == 0, process.stderr[-3000:]
    report = json.loads(process.stdout.splitlines()[-1])
    assert report == {"archived": 100, "executors": 2, "driver": cluster.driver_address}
    work.assert_complete()
    begun = [path.read_text() for path in tmp_path.glob("work-*/app-*/*/stderr")]
    assert len(begun) == 2
    assert all(option in text for option in classarchive.options() for text in begun)
