"""The Spark cluster of docker-compose.yml, with a driver in another network, as if on another machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deliveries.pipeline import needs
from tests.ports import free_port, wait_for
from tests.workers import ROOT

#: Two tasks pass their rows through Python, back to the driver.
JOB = """
from django.conf import settings
from deliveries.pipeline.session import spark_session
session = spark_session("apart", master=settings.SPARK_MASTER, extra=settings.SPARK_CONF, short=True)
rows = session.range(0, 8, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()
print(session.conf.get("spark.driver.host"), sum(row.id for row in rows))
session.stop()
"""
#: The web pages of the master and the worker get free ports.
PAGES = {"SPARK_MASTER_WEBUI_PORT": "0", "SPARK_WORKER_WEBUI_PORT": "0"}


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
    holder = subprocess.Popen(["unshare", "--net", "sleep", "600"], stderr=subprocess.DEVNULL)
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


@contextmanager
def service(
    compose: dict[str, Any], name: str, *, replaced: dict[str, str], inside: list[str], log: Path
) -> Iterator[None]:
    """Run a service of the compose file, with the texts `replaced` in its command and environment."""

    def local(text: str) -> str:
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    command = [local(word).replace("$$", "$") for word in compose[name]["command"]]
    programs = Path(sys.executable).parent
    env = os.environ | {key: local(value) for key, value in compose[name]["environment"].items()} | PAGES
    # PATH is as in the image. SPARK_CONF_DIR keeps out the settings of another test's session.
    env |= {"PATH": f"{programs}:{env['PATH']}", "SPARK_CONF_DIR": str(log.parent)}
    env["SPARK_LOCAL_IP"] = replaced["spark-master"]
    with log.open("w") as output:
        process = subprocess.Popen([*inside, *command], env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_a_cluster_on_other_machines_reaches_the_driver(compose: dict[str, Any], tmp_path: Path) -> None:
    """Given the master and a worker of the compose file in a network of their own, when a driver knows only the
    master's address, then the executors reach the driver; a driver without the secret is refused.
    """
    secret, port = tmp_path / "secret", str(free_port())
    secret.write_text("only-for-this-test")
    conf = compose["rollup"]["environment"]["PUSHHUB_SPARK_CONF"]
    with ExitStack() as stack:
        inside, address, driver_address = stack.enter_context(network_namespace())
        replaced = {
            "spark-master": address,
            "7077": port,
            "/run/secrets/spark_secret": str(secret),
            "/tmp/work": str(tmp_path / "work"),
            "3g": "1500m",
        }
        logs = {name: tmp_path / f"{name}.log" for name in ("spark-master", "spark-worker")}
        for name, ready in (("spark-master", "ALIVE"), ("spark-worker", "Successfully registered")):
            stack.enter_context(service(compose, name, replaced=replaced, inside=inside, log=logs[name]))
            wait_for(lambda log=logs[name], word=ready: word in log.read_text(), what=name)  # type: ignore[misc]
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_SECRET_KEY": "x",
            "PUSHHUB_SPARK_MASTER": f"spark://{address}:{port}",
            "PUSHHUB_SPARK_CONF": conf,
        }
        command = [sys.executable, "-W", "ignore", "-c", JOB]
        driver_with_secret, driver_without_secret = [
            subprocess.run(command, cwd=ROOT, env=env | more, capture_output=True, text=True, timeout=300, check=False)
            for more in ({"PUSHHUB_SPARK_SECRET_FILE": str(secret)}, {})
        ]

    assert driver_with_secret.stdout.split() == [driver_address, "28"], driver_with_secret.stderr[-3000:]
    assert driver_without_secret.returncode != 0, "a driver without the secret is refused"
