"""The Spark cluster of docker-compose.yml in another network, as if on other machines: it runs every job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deliveries.models import Delivery, Message, MetricMinute, PublishPart
from deliveries.pipeline import classarchive
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.pipeline.ground import archived_by_duckdb, counted_by_duckdb, make_segments, metrics_of
from tests.pipeline.quickjava import ARCHIVED_JAVA, QUICK_JAVA
from tests.pipeline.spread import JOBS, run_jobs, spread
from tests.ports import free_port, wait_for
from tests.workers import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

#: The topic that is replayed.
TOPIC = "projects/p0/topics/orders"
WORKER = "projects/p0/subscriptions/worker"
EXECUTORS = 4
MESSAGES = 1600
#: A task of the rollup returns sums; of the other jobs, what it wrote.
MOST_RESULT_BYTES = {"rollup": 1_000_000}
#: The web pages of the master and the workers get free ports.
PAGES = {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}


@pytest.fixture(scope="module")
def compose(needs_spark: None) -> dict[str, Any]:
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
        env["SPARK_DAEMON_JAVA_OPTS"] += f" {ARCHIVED_JAVA}"
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


def test_a_cluster_on_other_machines_runs_every_job_on_all_executors(
    compose: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    """Given the master and two workers of the compose file in a network of their own, with four executors of one core,
    and a driver that knows only the master's address, when each job runs, then by Spark's event log each executor has
    finished tasks of it, and what DuckDB counts in the archive and in the segments is what was published and counted.
    A driver without the secret is refused.
    """
    create_topic(name=TOPIC, topic={})
    create_subscription(name=WORKER, subscription={"topic": TOPIC})
    segments = make_segments(tmp_path / "segments", range(4 * EXECUTORS), seed=3, count=5)
    own = "".join(f",spark.{role}.extraJavaOptions={QUICK_JAVA}" for role in ("driver", "executor"))
    environment = {
        "PUSHHUB_DATABASE_URL": database_url(),
        "PUSHHUB_REDIS_URL": redis_url,
        "PUSHHUB_SPARK_CONF": compose["rollup"]["environment"]["PUSHHUB_SPARK_CONF"] + own,
    }
    # The driver without the secret tries for a minute, meanwhile the other one works.
    with Cluster(compose, tmp_path) as cluster, ThreadPoolExecutor() as pool:
        refused = pool.submit(run_jobs, tmp_path, master=cluster.url, messages=MESSAGES, environment=environment)
        environment = {**environment, "PUSHHUB_SPARK_SECRET_FILE": str(cluster.secret)}
        done = spread(tmp_path, master=cluster.url, executors=EXECUTORS, messages=MESSAGES, environment=environment)

    assert refused.result().returncode != 0, refused.result().stdout
    assert "All masters are unresponsive" in refused.result().stderr
    assert done.driver == cluster.driver_address
    begun = [path.read_text() for path in tmp_path.glob("work-*/app-*/*/stderr")]
    assert len(begun) == EXECUTORS
    assert all(option in text for option in classarchive.options() for text in begun)
    assert {job: len(done.works[job].tasks) for job in JOBS} == dict.fromkeys(JOBS, EXECUTORS)
    for job in JOBS:
        assert done.works[job].result_bytes < MOST_RESULT_BYTES.get(job, 20_000), job
    topics = {f"projects/p{number}/topics/orders": MESSAGES // 4 for number in range(4)}
    assert archived_by_duckdb(tmp_path / "archive") == topics
    # All of them, one topic's again, and two ingests of as many rows.
    assert Message.objects.count() == MESSAGES + 3 * MESSAGES // 4
    assert Delivery.objects.count() == 2 * MESSAGES // 4
    assert sum(row.rejected for row in PublishPart.objects.all()) == 2
    assert "no row" in Path(f"{tmp_path / 'rows'}.rejected").read_text()
    assert metrics_of(MetricMinute) == counted_by_duckdb(segments, seconds=60)
