"""`make up` and the README's round trip, as a new user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from deliveries.pipeline import needs
from tests.endtoend.running import ROOT, Running, environment, running, start
from tests.pipeline.quickjava import QUICK_SPARK
from tests.ports import free_port, wait_for
from tests.receiver import Receiver


@pytest.fixture(scope="module")
def pushhub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # If Spark were missing, it would be installed from the network.
    spark = "off" if needs.missing() else "on"
    more = {"PUSHHUB_JOURNAL": "on", "PUSHHUB_SPARK": spark, "PUSHHUB_SPARK_CONF": QUICK_SPARK}
    with running(environment(tmp_path_factory.mktemp("up"), **more)) as instance:
        yield instance


def readme_lines(pushhub: Running, *, receiver_port: int) -> str:
    """Return the lines of the README's round trip, with the two ports replaced."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "curl" in block]
    assert len(block.splitlines()) <= 10
    block = block.replace("127.0.0.1:8000", pushhub.environment["PUSHHUB_HTTP"])
    return block.replace("--port 8080", f"--port {receiver_port}").replace(":8080/", f":{receiver_port}/")


def test_the_lines_of_the_readme_deliver_a_verified_message(pushhub: Running, tmp_path: Path) -> None:
    # Given a terminal next to a running PushHub
    terminal = tmp_path / "terminal"
    with terminal.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-eu", "-c", readme_lines(pushhub, receiver_port=free_port()) + "wait\n"],
            cwd=ROOT, env=pushhub.environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    # When the README's lines are pasted
    try:
        # Then the terminal shows the message and what its token proves
        wait_for(lambda: "Hello, PushHub!" in terminal.read_text() or shell.poll() is not None, what="the message")
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait()
    printed = terminal.read_text()
    assert re.search(r"^\S+ verified signer@demo\.iam\.gserviceaccount\.com, audience my-audience$", printed, re.M)
    assert re.search(r"^ +projects/demo/subscriptions/reader message \d+ attempt 1, answered 204$", printed, re.M)
    assert re.search(r"^ +lang = en\n +Hello, PushHub!$", printed, re.M)


def test_every_service_that_is_ready_is_printed_with_its_address(pushhub: Running) -> None:
    printed = pushhub.printed()
    for line in [
        f"ready: embedded Redis at {pushhub.environment['PUSHHUB_DATA']}/redis.sock",
        f"ready: database {pushhub.environment['PUSHHUB_DATA']}/pushhub.sqlite3",
        f"ready: REST and admin at {pushhub.api}",
        f"ready: Flower at {pushhub.flower}",
        "ready: push worker on queue deliveries.local",
        "ready: maintenance worker and beat on queue maintenance",
        "a caller without a token is user:developer@localhost",
        f'the command line: export PATH="{ROOT}/bin:$PATH", and then: pushhub topics list --project=demo',
    ]:
        assert printed.count(f"{line}\n") == 1, line
    assert "\x1b" not in printed
    assert "Traceback" not in printed


def test_the_snippet_of_the_readme_calls_pushhub(pushhub: Running) -> None:
    pushhub.put("topics/first", {})
    [snippet] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet.replace("127.0.0.1:8000", pushhub.environment["PUSHHUB_HTTP"]), names)
    with names["pubsub"] as pubsub:
        topics = pubsub.projects().topics().list(project="projects/demo").execute()["topics"]
    assert "projects/demo/topics/first" in [topic["name"] for topic in topics]


def test_the_version_of_the_embedded_redis_is_printed(pushhub: Running) -> None:
    assert re.search(r"^ pushhub +\| Valkey 9\.\d+\.\d+$", pushhub.printed(), re.M)


def test_only_the_owner_can_read_the_data_folder(pushhub: Running) -> None:
    """PushHub was started with a umask that allows everybody everything."""
    folder = Path(pushhub.environment["PUSHHUB_DATA"])
    modes = {path: path.lstat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}
    assert len(modes) > 8
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_an_access_token_in_the_query_is_not_printed(pushhub: Running) -> None:
    query = {"access_token": "ya29.not-for-the-log"}
    assert requests.get(f"{pushhub.api}/v1/projects/demo/topics", params=query, timeout=30).status_code == 401
    assert "not-for-the-log" not in pushhub.printed()


def test_the_admin_login_is_shown_once_and_opens_the_admin(pushhub: Running) -> None:
    (password,) = re.findall(r"The admin login, shown this once:  admin  (\S+)", pushhub.printed())
    login = f"{pushhub.api}/admin/login/?next=/admin/"
    with requests.Session() as session:
        page = session.get(login, timeout=10)
        token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[0]
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": token}
        console = session.post(login, data=form, headers={"Referer": login}, timeout=10)
        assert "Log out" in console.text
        # The language can be switched to Chinese.
        token = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', console.text)[0]
        form = {"language": "zh-hans", "csrfmiddlewaretoken": token, "next": "/admin/"}
        chinese = session.post(f"{pushhub.api}/i18n/setlang/", data=form, headers={"Referer": login}, timeout=10)
        assert '<html lang="zh-hans"' in chinese.text
    data = Path(pushhub.environment["PUSHHUB_DATA"])
    assert not [path for path in data.rglob("*") if path != pushhub.log and _holds(path, password)]


def _holds(path: Path, text: str) -> bool:
    try:
        return path.is_file() and text.encode() in path.read_bytes()
    except FileNotFoundError:  # the journal creates and removes files all the time
        return False


@pytest.mark.parametrize("page", ["/admin/login/", "/docs"])
def test_pages_load_everything_from_their_own_host(pushhub: Running, page: str) -> None:
    text = requests.get(pushhub.api + page, timeout=10).text
    parts = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', text)
    assert parts
    for part in parts:
        assert part.startswith("/"), part
        assert requests.get(pushhub.api + part, timeout=10).status_code == 200, part


def test_flower_shows_deliveries_their_retries_and_the_worker(pushhub: Running, receiver: Receiver) -> None:
    # Given an endpoint that refuses once
    receiver.script([503])
    pushhub.subscribe("watched", receiver.url)
    # When a message is pushed to it
    pushhub.publish("watched")
    receiver.wait(2)

    # Then Flower shows that the push worker has done its second attempt
    def shown() -> bool:
        return any(
            task["state"] == "SUCCESS" and task["retries"] == 2 and task["worker"].startswith("push@")
            for task in pushhub.flower_tasks()
            if task["name"] == "deliveries.deliver" and task["args"] == "demo/watched"
        )

    wait_for(shown, what="the delivery in Flower")
    worker = requests.get(f"{pushhub.flower}/workers", params={"json": 1}, timeout=10).json()["data"]
    assert {row["hostname"].split("@")[0]: row["status"] for row in worker} == {"push": True, "maintenance": True}


def test_attempts_become_metrics(pushhub: Running, receiver: Receiver) -> None:
    """Given Java, so that the rollup runs too, when a message is pushed, then its attempt is counted."""
    if missing := needs.missing():
        pytest.skip(missing)
    assert "ready: rollup of metrics from " in pushhub.printed()
    pushhub.subscribe("counted", receiver.url)
    pushhub.publish("counted")
    receiver.wait(1)

    def counted() -> list[str]:
        now = datetime.now(UTC)
        query = {
            "filter": 'metric.type = "pubsub.googleapis.com/subscription/push_request_count"'
            ' AND resource.labels.subscription_id = "counted"',
            "interval.startTime": (now - timedelta(minutes=10)).isoformat(),
            "interval.endTime": (now + timedelta(minutes=1)).isoformat(),
        }
        answer = requests.get(f"{pushhub.api}/v3/projects/demo/timeSeries", params=query, timeout=10).json()
        return [series["metric"]["labels"]["response_code"] for series in answer.get("timeSeries", [])]

    assert wait_for(counted, what="the metric") == ["204"]


def test_a_second_start_says_which_port_is_taken_and_how_to_move_it(pushhub: Running) -> None:
    second_start = start(pushhub.environment)
    port = pushhub.environment["PUSHHUB_HTTP"].rpartition(":")[2]
    assert second_start.returncode == 1
    assert second_start.stdout == ""
    assert second_start.stderr == (
        f"PushHub cannot start: port {port} on 127.0.0.1 is taken: stop what listens there, or choose another, for "
        f"example by PUSHHUB_HTTP=127.0.0.1:{int(port) + 1}\n"
    )


def test_a_process_that_dies_is_started_again_and_continues_its_work(pushhub: Running, receiver: Receiver) -> None:
    # Given a subscription and a push worker that is killed
    pushhub.subscribe("killed", receiver.url)
    children = psutil.Process(pushhub.process.pid).children()
    (worker,) = [child for child in children if "push@" in " ".join(child.cmdline())]
    worker.kill()
    # When a message is published meanwhile
    pushhub.publish("killed")
    # Then the supervisor starts the worker again, and the message arrives
    receiver.wait(1)
    assert "push worker ended (signal 9): starting it again" in pushhub.printed()
    wait_for(lambda: "ready again: push worker" in pushhub.printed(), what="the worker's ready line")


def test_after_sigterm_another_start_finds_everything(receiver: Receiver) -> None:
    # Given a PushHub that was stopped while it held a message for an endpoint that is down
    with tempfile.TemporaryDirectory(prefix="pushhub-up-") as folder:
        variables = environment(Path(folder))
        receiver.default = 503
        with running(variables, stop_with=signal.SIGTERM) as first:
            first.subscribe("kept", receiver.url)
            first.publish("kept")
            receiver.wait(1)
        # When it is started again on the same data and the endpoint works
        receiver.default = 204
        before = len(receiver.requests)
        with running(variables) as restarted:
            # Then the message arrives, and no second admin login is created
            receiver.wait(before + 1)
            assert "admin login" not in restarted.printed()


def test_anonymous_callers_are_refused_on_an_address_that_other_machines_reach(tmp_path: Path) -> None:
    variables = {**environment(tmp_path), "PUSHHUB_HTTP": f"0.0.0.0:{free_port()}", "PUSHHUB_ANONYMOUS": "user:me@here"}
    refused = start(variables)
    assert refused.returncode == 1
    assert refused.stderr.startswith("PushHub cannot start: PUSHHUB_ANONYMOUS lets callers in without a token")
    assert len(refused.stderr.splitlines()) == 1


def test_an_environment_that_an_interrupted_make_left_without_pip_is_made_again(tmp_path: Path) -> None:
    """Given the environment of a `make up` that ended before pip was there, then the next one has a whole one."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for said in ("making the virtual environment", ""):
        made = subprocess.run(
            ["make", "--no-print-directory", f"VENV={folder}", f"PYTHON={sys.executable}", f"{folder}/.made"],
            cwd=ROOT, capture_output=True, text=True, check=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        )  # fmt: skip
        assert made.stdout.startswith(said or "make: "), "a whole one is left as it is"
    subprocess.run([folder / "bin" / "python", "-m", "pip", "--version"], check=True, capture_output=True)
