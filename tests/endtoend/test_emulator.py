"""`pushhub emulator`, used as a developer's test suite uses it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import requests
from google.api_core.exceptions import NotFound
from google.cloud import pubsub_v1

from pushhub.testing import Emulator, EmulatorError
from subscriptions.cli import main as cli
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.redisserver import RedisServer

ROOT = Path(__file__).parents[2]
ORDERS = "projects/demo/topics/orders"
BILLING = "projects/demo/subscriptions/billing"
RESOURCES = """
projects:
  demo:
    serviceAccounts: {pusher: {}}
    topics: {orders: {}, mails: {}}
    subscriptions:
      billing: {topic: orders, ackDeadlineSeconds: 20}
      mailed:
        topic: mails
        pushConfig:
          pushEndpoint: http://127.0.0.1:9000/
          oidcToken: {serviceAccountEmail: pusher@demo.iam.gserviceaccount.com}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    path = tmp_path_factory.mktemp("emulator") / "resources.yaml"
    path.write_text(RESOURCES)
    with Emulator(projects=["other,news"], resources=path) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    running.reset()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", running.host_port)
    return running


def test_it_prints_the_line_that_test_containers_wait_for(emulator: Emulator) -> None:
    port = emulator.host_port.rpartition(":")[2]
    assert f"Server started, listening on {port}\n" in emulator.printed
    assert f"PUBSUB_EMULATOR_HOST={emulator.host_port}\n" in emulator.printed


def test_resources_named_at_the_start_exist_and_messages_are_pulled(emulator: Emulator) -> None:
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        assert [topic.name for topic in publisher.list_topics(project="projects/other")] == [
            "projects/other/topics/news"
        ]
        assert subscriber.get_subscription(subscription=BILLING).ack_deadline_seconds == 20
        mailed = subscriber.get_subscription(subscription="projects/demo/subscriptions/mailed")
        assert mailed.push_config.oidc_token.service_account_email == "pusher@demo.iam.gserviceaccount.com"
        publisher.publish(ORDERS, b"one", kind="a").result(timeout=60)
        pulled = subscriber.pull(subscription=BILLING, max_messages=5).received_messages
        assert [(item.message.data, dict(item.message.attributes)) for item in pulled] == [(b"one", {"kind": "a"})]


def test_messages_are_pushed_and_a_refused_message_is_pushed_again(emulator: Emulator, receiver: Receiver) -> None:
    receiver.script([503, 204])
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        subscriber.create_subscription(
            name="projects/demo/subscriptions/hook", topic=ORDERS, push_config={"push_endpoint": receiver.url}
        )
        publisher.publish(ORDERS, b"two").result(timeout=60)
        wait_for(lambda: len(receiver.requests) == 2, what="the second attempt")


def test_a_small_time_scale_shortens_the_wait_for_a_retry(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry policy asks for ten minutes, of which the time scale makes 60 ms."""
    receiver.script([503, 204])
    with Emulator(projects=["demo,orders"], time_scale=0.0001) as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.host_port)
        with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
            wait = {"seconds": 600}
            subscriber.create_subscription(
                {
                    "name": "projects/demo/subscriptions/hook",
                    "topic": ORDERS,
                    "push_config": {"push_endpoint": receiver.url},
                    "retry_policy": {"minimum_backoff": wait, "maximum_backoff": wait},
                }
            )
            publisher.publish(ORDERS, b"three").result(timeout=60)
            wait_for(lambda: len(receiver.requests) == 2, what="the second attempt")


def test_a_reset_keeps_the_resources_named_at_the_start(emulator: Emulator) -> None:
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        publisher.create_topic(name="projects/demo/topics/extra")
        publisher.publish(ORDERS, b"old").result(timeout=60)

        emulator.reset()

        with pytest.raises(NotFound):
            publisher.get_topic(topic="projects/demo/topics/extra")
        publisher.publish(ORDERS, b"new").result(timeout=60)
        pulled = subscriber.pull(subscription=BILLING, max_messages=5).received_messages
        assert [item.message.data for item in pulled] == [b"new"]


def test_a_reset_makes_the_service_accounts_of_the_start_anew(emulator: Emulator) -> None:
    accounts = f"http://{emulator.host_port}/v1/projects/demo/serviceAccounts"
    pusher = f"{accounts}/pusher@demo.iam.gserviceaccount.com"
    assert requests.post(f"{pusher}:disable", timeout=30).status_code == 200
    assert requests.post(accounts, json={"accountId": "another"}, timeout=30).status_code == 200

    emulator.reset()

    [account] = requests.get(accounts, timeout=30).json()["accounts"]
    assert (account["email"], "disabled" in account) == ("pusher@demo.iam.gserviceaccount.com", False)


def test_a_page_of_another_site_cannot_reset_it(emulator: Emulator) -> None:
    address = f"http://{emulator.host_port}/emulator/reset"
    assert requests.post(address, headers={"Origin": "https://evil.example"}, timeout=30).status_code == 403
    assert requests.get(address, timeout=30).status_code == 405


def test_rest_and_the_console_need_no_credentials(emulator: Emulator) -> None:
    topics = requests.get(f"http://{emulator.host_port}/v1/projects/demo/topics", timeout=30).json()
    assert [topic["name"] for topic in topics["topics"]] == ["projects/demo/topics/mails", ORDERS]
    assert requests.get(f"{emulator.console_url}/v1/{ORDERS}", timeout=30).status_code == 200


@pytest.mark.parametrize("project", ["porto sentido", "Test", "test", "a.b", "123", "google", "50% off?"])
def test_any_project_id_is_taken_on_every_surface(
    emulator: Emulator, project: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Google's emulator does; Spring's own tests use the first."""
    topic, subscription = f"projects/{project}/topics/orders", f"projects/{project}/subscriptions/billing"
    monkeypatch.setenv("PUSHHUB_URL", emulator.console_url)

    assert cli.main(["topics", "create", "orders", f"--project={project}"]) == 0
    with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
        subscriber.create_subscription(name=subscription, topic=topic)
        publisher.publish(topic, b"one").result(timeout=60)
        [pulled] = subscriber.pull(subscription=subscription, max_messages=5).received_messages
        listed = publisher.list_topics(project=f"projects/{project}")
        assert [row.name for row in listed] == [topic]
    url = f"http://{emulator.host_port}/v1/projects/{quote(project)}/topics"
    assert requests.get(url, timeout=30).json() == {"topics": [{"name": topic, "state": "ACTIVE"}]}
    acknowledgement = {"ackIds": [pulled.ack_id]}
    url = f"http://{emulator.host_port}/v1/projects/{quote(project)}/subscriptions/billing:acknowledge"
    assert requests.post(url, json=acknowledgement, timeout=30).json() == {}
    capsys.readouterr()
    assert cli.main(["topics", "list", f"--project={project}", "--uri"]) == 0
    assert capsys.readouterr().out == f"{emulator.console_url}/v1/projects/{quote(project)}/topics/orders\n"


def test_projects_with_any_id_can_be_named_at_the_start_and_created() -> None:
    with Emulator(projects=["porto sentido,orders"]) as emulator:
        url = f"http://{emulator.host_port}/v1/projects"
        assert requests.post(url, json={"projectId": "a.b"}, timeout=30).status_code == 200
        listed = requests.get(url, timeout=30).json()["projects"]
    assert {project["projectId"] for project in listed} == {"porto sentido", "a.b"}


def test_a_data_folder_keeps_everything_across_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in ("first", "second"):
        with Emulator(projects=["demo,orders:billing"], data_dir=tmp_path / "data") as emulator:
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.host_port)
            with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
                if start == "first":
                    publisher.publish(ORDERS, b"kept").result(timeout=60)
                else:
                    pulled = subscriber.pull(subscription=BILLING, max_messages=5).received_messages
                    assert [item.message.data for item in pulled] == [b"kept"]


def test_a_data_folder_has_one_emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would stop the first one's Redis."""
    with Emulator(projects=["demo,orders:billing"], data_dir=tmp_path) as emulator:
        with pytest.raises(EmulatorError, match=f"the data folder {tmp_path} is in use by another PushHub"):
            Emulator(data_dir=tmp_path).start()
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.host_port)
        with pubsub_v1.PublisherClient() as publisher, pubsub_v1.SubscriberClient() as subscriber:
            publisher.publish(ORDERS, b"one").result(timeout=60)
            assert subscriber.pull(subscription=BILLING, max_messages=5).received_messages


def test_a_save_of_redis_in_the_data_folder_is_used_once(tmp_path: Path) -> None:
    """One that stayed would be older than the database at the next start."""
    (folder := tmp_path / "redis").mkdir()
    with RedisServer(folder) as redis_server, redis.Redis.from_url(redis_server.url) as client:
        client.save()
    assert [*folder.glob("*.rdb")] != []
    with Emulator(data_dir=tmp_path):
        pass
    assert [*folder.glob("*.rdb")] == []


@contextmanager
def at_a_terminal(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run an emulator whose temporary files are in `folder` and which leads a group, as a shell's child does."""
    command = [sys.executable, "-m", "pushhub.emulator", "--host-port=127.0.0.1:0", *options]
    # Tests that run under `nohup` ignore SIGHUP, and so would it.
    command = ["env", "--default-signal=HUP", *command]
    with subprocess.Popen(
        command, env=os.environ | {"TMPDIR": str(folder)}, text=True, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.terminate()
            raise


@pytest.fixture(params=[0, 66], ids=["a short path", "one too long for a socket in the data folder"])
def temporary(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for temporary files, whose path has so many characters at least."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name) / "x".ljust(request.param - len(name) - 1, "x")
        folder.mkdir()
        yield folder


def test_ctrl_c_stops_it_and_prints_one_line(temporary: Path) -> None:
    with at_a_terminal(temporary) as process:
        assert process.stdout is not None
        while "Server started" not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # Redis is its child, and must not stop first
        printed = process.stdout.read()
    assert printed == "[pubsub] INFO: stopping: pushes under way end first; Ctrl-C again stops at once\n"
    assert process.returncode == 0
    assert [*temporary.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    with at_a_terminal(temporary) as process:
        wait_for(lambda: [*temporary.glob("*/redis")] or process.poll() is not None, what="the start of Redis")
        process.send_signal(number)
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert process.returncode == 130
    assert [*temporary.iterdir()] == []


#: Python runs it before a program. It sends a signal within a callback, as may happen in any import: an error that is
#: raised there is printed and forgotten.
SIGNALS_WITHIN_A_CALLBACK = """
import os, signal, sys, weakref

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pushhub.emulator.process":
            thing = Finder()
            reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del thing

sys.meta_path.insert(0, Finder())
"""


def test_a_signal_within_a_callback_of_the_interpreter_is_not_lost(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGNALS_WITHIN_A_CALLBACK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with at_a_terminal(temporary) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == ""
    assert process.returncode == 130
    assert [*temporary.iterdir()] == []


def test_a_warning_is_printed_for_an_address_that_other_machines_reach() -> None:
    command = [sys.executable, "-m", "pushhub.emulator", "--host-port=0.0.0.0:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        warning = process.stdout.readline()
        process.terminate()
    assert "WARNING: whoever reaches 0.0.0.0:" in warning
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("--host-port=nowhere", "--host-port=nowhere: give HOST:PORT"),
        ("--host-port=127.0.0.1:²", "--host-port=127.0.0.1:²: give HOST:PORT"),
        ("--project=demo,orders:b!d", "projects/demo/subscriptions/b!d: "),
        ("--resources=/nowhere.yaml", "/nowhere.yaml: No such file or directory"),
        ("--time-scale=0", "--time-scale: '0': give a number above 0"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(option: str, reason: str) -> None:
    command = [sys.executable, "-m", "pushhub.emulator", "--host-port=127.0.0.1:0", option]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert process.returncode != 0
    assert "Traceback" not in process.stderr
    assert reason in process.stderr.splitlines()[-1]


def block_of_the_page(language: str, words: str) -> str:
    page = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S) if words in block]
    return block


def test_the_file_and_the_commands_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "resources.yaml").write_text(block_of_the_page("yaml", "projects:"))
    with Emulator(resources=tmp_path / "resources.yaml") as emulator:
        billing = requests.get(f"http://{emulator.host_port}/v1/{BILLING}", timeout=30).json()
        assert billing["deadLetterPolicy"]["deadLetterTopic"] == "projects/demo/topics/dead-orders"
        commands = block_of_the_page("sh", "PUSHHUB_URL").replace("127.0.0.1:8085", emulator.host_port)
        path = f"{ROOT / 'bin'}:{os.environ['PATH']}"
        printed = subprocess.check_output(["bash", "-euc", commands], env=os.environ | {"PATH": path}, text=True)
    assert "projects/demo/topics/orders" in printed


def test_the_snippet_of_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "")  # which the snippet sets
    exec(compile(block_of_the_page("python", "reset()"), "docs/emulator.md", "exec"), {})


def test_the_fixture_of_pytest_works_as_documented(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(block_of_the_page("python", "def test_"))
    command = [sys.executable, "-m", "pytest", "-p", "pushhub.testing.plugin", "-p", "no:cacheprovider"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DJANGO_"))}
    ran = subprocess.run(
        command, cwd=tmp_path, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert "1 passed" in ran.stdout, ran.stdout


def test_it_ends_when_the_run_of_the_tests_is_killed(temporary: Path) -> None:
    code = "from pushhub.testing import Emulator\nprint(Emulator().start().host_port, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(temporary)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as tests:  # fmt: skip
        assert tests.stdout is not None
        assert tests.stdout.readline().startswith("127.0.0.1:")
        tests.kill()
    wait_for(lambda: [*temporary.iterdir()] == [], what="the end of the emulator")


def test_a_start_that_fails_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="is not YAML"):
        (tmp_path / "broken.yaml").write_text("projects: {")
        Emulator(resources=tmp_path / "broken.yaml").start()
