"""A standalone master of Spark whose worker has executors of one core, on loopback, and what its event logs say."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.pipeline.quickjava import ARCHIVED_JAVA
from tests.ports import free_port, wait_for

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"
SECRET = "only-for-this-test"
EXECUTOR_MEMORY = "512m"
#: The settings of a driver that waits for `executors` and writes its event log into a folder.
SETTINGS = (
    "spark.cores.max={executors},spark.executor.cores=1,spark.executor.memory={memory},"
    "spark.scheduler.minRegisteredResourcesRatio=1.0,spark.scheduler.maxRegisteredResourcesWaitingTime=600s,"
    "spark.eventLog.enabled=true,spark.eventLog.rolling.enabled=false,spark.eventLog.compress=false,"
    "spark.eventLog.dir=file://{folder}"
)


@contextmanager
def standalone(folder: Path, *, executors: int) -> Iterator[str]:
    """Yield the master's address once its worker is there, which has a core for each executor."""
    url = f"spark://127.0.0.1:{free_port()}"
    host, port = url.removeprefix("spark://").split(":")
    with ExitStack() as stack:
        master = ["master.Master", "--host", host, "--port", port, "--webui-port", "0"]
        stack.enter_context(_daemon(master, folder / "master.log", ready="ALIVE"))
        size = ["--cores", str(executors), "--memory", f"{executors}g"]
        worker = ["worker.Worker", "--host", host, "--webui-port", "0", *size, "--work-dir", str(folder / "work"), url]
        stack.enter_context(_daemon(worker, folder / "worker.log", ready="Successfully registered"))
        yield url


@contextmanager
def _daemon(words: list[str], log: Path, *, ready: str) -> Iterator[None]:
    env = os.environ | {
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": f"{ARCHIVED_JAVA} -Dspark.authenticate=true",
        "_SPARK_AUTH_SECRET": SECRET,
        # There is no such folder. It keeps the settings of another session out.
        "SPARK_CONF_DIR": str(log.parent / "none"),
    }
    with log.open("w") as output:
        command = [str(SPARK_CLASS), f"{DEPLOY}.{words[0]}", *words[1:]]
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_for(lambda: ready in log.read_text() or process.poll() is not None, what=f"{words[0]}: {ready}")
        assert process.poll() is None, log.read_text()[-2000:]
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


@dataclass(slots=True)
class Work:
    """What the event log says of one of our jobs, which may be several of Spark's."""

    #: How many tasks each executor finished, in the stages with the most tasks.
    tasks: Counter[str] = field(default_factory=Counter)
    #: Bytes that tasks returned to the driver, at most in one task.
    result_bytes: int = 0


def work_in(log: Path) -> dict[str, Work]:
    """Return the work of each job that an event log names, by its description."""
    works: dict[str, Work] = {}
    names: dict[int, str] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            name = event["Properties"].get("spark.job.description", "")
            names |= dict.fromkeys(event["Stage IDs"], name)
        elif event["Event"] == "SparkListenerTaskEnd" and (name := names.get(event["Stage ID"], "")):
            work = works.setdefault(name, Work())
            work.tasks[event["Task Info"]["Executor ID"]] += 1
            work.result_bytes = max(work.result_bytes, event["Task Metrics"]["Result Size"])
    return works
