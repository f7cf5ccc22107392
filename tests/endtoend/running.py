"""Run PushHub as `make up` does, on free ports and with a data folder of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from tests.ownprocess import is_alive
from tests.ports import free_port, wait_for

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "pushhub.runtime.supervisor"]


@dataclass(frozen=True)
class Running:
    """A running PushHub: its addresses, its output and its processes."""

    environment: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def api(self) -> str:
        return f"http://{self.environment['PUSHHUB_HTTP']}"

    @property
    def flower(self) -> str:
        return f"http://{self.environment['PUSHHUB_FLOWER']}"

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def put(self, path: str, body: dict[str, Any]) -> None:
        requests.put(f"{self.api}/v1/projects/demo/{path}", json=body, timeout=10).raise_for_status()

    def post(self, path: str, body: dict[str, Any]) -> None:
        requests.post(f"{self.api}/v1/projects/demo/{path}", json=body, timeout=10).raise_for_status()

    def subscribe(self, name: str, url: str) -> None:
        """Create a topic and a push subscription of this name."""
        self.put(f"topics/{name}", {})
        config = {"topic": f"projects/demo/topics/{name}", "pushConfig": {"pushEndpoint": url}}
        self.put(f"subscriptions/{name}", config)

    def publish(self, name: str) -> None:
        self.post(f"topics/{name}:publish", {"messages": [{"data": "eA=="}]})

    def flower_tasks(self) -> list[dict[str, Any]]:
        """Return the rows of Flower's page of tasks."""
        query = {"draw": 1, "start": 0, "length": 100, "order[0][column]": 0, "columns[0][data]": "name"}
        answer = requests.get(f"{self.flower}/tasks/datatable", params=query, timeout=10)
        answer.raise_for_status()
        tasks: list[dict[str, Any]] = answer.json()["data"]
        return tasks


def environment(data: Path, **more: str) -> dict[str, str]:
    """Return a new user's environment with free ports and this data folder. Only `more` can turn on the rollup."""
    # An earlier test may have set JAVA_HOME to our wrapper, which needs PUSHHUB_JDK
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PUSHHUB_") or k == "PUSHHUB_JDK"}
    clean.pop("DJANGO_SETTINGS_MODULE", None)
    return {
        **clean,
        "PUSHHUB_DATA": str(data),
        "PUSHHUB_HTTP": f"127.0.0.1:{free_port()}",
        "PUSHHUB_GRPC": f"127.0.0.1:{free_port()}",
        "PUSHHUB_FLOWER": f"127.0.0.1:{free_port()}",
        "PUSHHUB_JOURNAL": "off",
        **more,
    }


def start(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Start PushHub where it cannot start."""
    return subprocess.run(COMMAND, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=300, check=False)


@contextmanager
def running(
    environment: dict[str, str], *, folder: Path = ROOT, stop_with: signal.Signals = signal.SIGINT
) -> Iterator[Running]:
    """Start PushHub and wait until it says that it is ready. At the end, stop it and check that it leaves nothing.

    `folder` is the repository, or a copy of its programs.
    """
    data = Path(environment["PUSHHUB_DATA"])
    data.mkdir(exist_ok=True)
    log = data / "log"
    with log.open("wb") as output:
        # Only the owner may read the files, even where the umask allows everybody.
        process = subprocess.Popen(
            COMMAND, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, umask=0
        )
    pushhub = Running(environment, process, log)
    try:
        wait_for(
            lambda: "PushHub is ready" in pushhub.printed() or process.poll() is not None, what="PushHub's ready line"
        )
        assert process.poll() is None, pushhub.printed()
        yield pushhub
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop_with)
        assert process.wait(timeout=60) == 0
        _, alive = psutil.wait_procs(children, timeout=5)
        assert list(filter(is_alive, alive)) == []
        assert not (data / "redis.sock").exists()
    except BaseException:
        print(pushhub.printed())
        raise
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)
