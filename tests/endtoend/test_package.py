"""The wheel and the source distribution have all files, and their commands run without a checkout."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pushhub import __version__
from tests.endtoend.running import environment as new_environment
from tests.ports import wait_for
from tests.receiver import Receiver

ROOT = Path(__file__).parents[2]
#: What an installation without extras lacks.
EXTRAS = (
    "pyarrow", "flower", "psycopg", "grpc_tools", "pyspark", "pandas", "fastavro", "drf_spectacular_sidecar", "uvloop",
    "google.pubsub_v1", "google.api_core", "google.auth", "google.oauth2", "proto", "opentelemetry",
)  # fmt: skip
PAGE_OF_THE_GUIDE = "pushhub/guide/_static/documentation_options.js"
#: A build only copies files: the checkout's tools are used, and nothing is fetched.
BUILD = "import sys, setuptools.build_meta as build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


MAIN = "import pushhub.cli; pushhub.cli.main()"


def run(*command: str | Path, cwd: Path) -> str:
    process = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=600
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel that was built from the source distribution, without extras.

    It uses the checkout's installed dependencies, as fetching them again would take minutes, but not those of extras.
    """
    folder = tmp_path_factory.mktemp("package")
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    for name in tracked:
        target = folder / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    (page := folder / "checkout" / PAGE_OF_THE_GUIDE).parent.mkdir(parents=True)
    page.touch()  # as `make docs` leaves there
    run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=folder / "checkout")
    (source,) = folder.glob("pushhub-*.tar.gz")
    run("tar", "-xzf", source, cwd=folder)
    unpacked = folder / source.name.removesuffix(".tar.gz")
    run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("pushhub-*.whl")
    venv.create(folder / "environment", with_pip=False)
    packages = next((folder / "environment" / "lib").glob("python*")) / "site-packages"
    options = ["--no-deps", "--no-index", "--no-compile"]
    run(sys.executable, "-m", "pip", "install", *options, "--target", packages, wheel, cwd=folder)
    site_packages = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "dependencies.pth").write_text(f"{site_packages}\n{Path(sys.prefix) / 'redis'}\n")
    (packages / "extras.pth").write_text(f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n")
    return folder / "environment"


def test_every_file_that_runs_is_in_the_wheel(environment: Path) -> None:
    packages = next((environment / "lib").glob("python*")) / "site-packages"
    kinds = re.compile(r"^(pushhub|subscriptions|deliveries)/.*(?<!\.po)$")
    tracked = [name for name in run("git", "ls-files", cwd=ROOT).splitlines() if kinds.match(name)]
    assert len(tracked) > 300
    assert [name for name in [*tracked, PAGE_OF_THE_GUIDE] if not (packages / name).exists()] == []


def test_the_emulator_starts_without_a_checkout(environment: Path, tmp_path: Path) -> None:
    """Nor does it take a module of the folder that it is started in for one of its own."""
    (tmp_path / "subscriptions.py").touch()
    script = (
        "import pushhub, pushhub.testing as testing; print(pushhub.__file__)\n"
        "with testing.Emulator(projects=['demo,orders']) as emulator: print(emulator.printed)"
    )
    printed = run(environment / "bin" / "python", "-c", script, cwd=tmp_path)
    assert str(environment) in printed
    assert "Server started, listening on" in printed


def test_the_small_emulator_takes_messages_over_grpc_and_pushes_them(
    environment: Path, tmp_path: Path, receiver: Receiver
) -> None:
    """It has asyncio's event loop in place of uvloop, and message classes without the client library."""
    script = (
        "import sys, grpc, pushhub.testing as testing\n"
        "from pushhub.common.pubsubtypes import pubsub\n"
        "with testing.Emulator(projects=['demo,orders']) as emulator:\n"
        "    channel = grpc.insecure_channel(emulator.host_port)\n"
        "    def call(method, request, answer):\n"
        "        to_bytes, path = type(request).SerializeToString, f'/google.pubsub.v1.{method}'\n"
        "        return channel.unary_unary(path, to_bytes, answer.FromString)(request, timeout=60)\n"
        "    push = pubsub.PushConfig(push_endpoint=sys.argv[1])\n"
        "    topic = 'projects/demo/topics/orders'\n"
        "    wanted = pubsub.Subscription(name='projects/demo/subscriptions/hook', topic=topic, push_config=push)\n"
        "    call('Subscriber/CreateSubscription', wanted, pubsub.Subscription)\n"
        "    request = pubsub.PublishRequest(topic=topic, messages=[pubsub.PubsubMessage(data=b'one')])\n"
        "    print(call('Publisher/Publish', request, pubsub.PublishResponse).message_ids[0], flush=True)\n"
        "    sys.stdin.read()"
    )
    command = [environment / "bin" / "python", "-c", script, receiver.url]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        message_id = process.stdout.readline().strip()
        assert message_id
        wait_for(lambda: receiver.requests, what="the push")
        process.stdin.close()
    assert receiver.requests[0].json["message"]["messageId"] == message_id
    assert process.returncode == 0


def test_the_small_emulator_says_which_extra_it_lacks(environment: Path, tmp_path: Path) -> None:
    script = (
        "import pushhub.testing as testing, requests, os\n"
        "with testing.Emulator(projects=['demo']) as emulator:\n"
        "    url = f'http://{emulator.host_port}'\n"
        "    for kind in ('PROTOCOL_BUFFER', 'AVRO'):\n"
        "        body = {'type': kind, 'definition': '{}'}\n"
        "        answer = requests.post(f'{url}/v1/projects/demo/schemas?schemaId=order', json=body, timeout=60)\n"
        "        print(answer.json()['error'])\n"
        "    print(requests.get(f'{url}/docs', timeout=60).text)"
    )
    printed = run(environment / "bin" / "python", "-c", script, cwd=tmp_path)
    for lacking in ("compiler of Protocol Buffers", "parser of Avro"):
        assert f"This server has no {lacking}: pip install 'pushhub[schemas]'" in printed
    assert "pip install &#x27;pushhub[service]&#x27;" in printed or "pip install 'pushhub[service]'" in printed


def test_the_command_runs(environment: Path, tmp_path: Path) -> None:
    assert "emulator" in run(environment / "bin" / "python", "-c", MAIN, "--help", cwd=tmp_path)
    assert run(environment / "bin" / "python", "-c", MAIN, "--version", cwd=tmp_path) == f"pushhub {__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["pushhub"] == "pushhub.cli:main"


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        (
            {"PUSHHUB_JOURNAL": "on"},
            "PUSHHUB_JOURNAL, unless it is off, needs the package pyarrow: pip install 'pushhub[service]'",
        ),
        ({}, "the process flower needs the package flower: pip install 'pushhub[service]'"),
        (
            {"PUSHHUB_DATABASE_URL": "postgres://db.example/pushhub"},
            "the database of PUSHHUB_DATABASE_URL needs the package psycopg: pip install 'pushhub[postgres]'",
        ),
    ],
)
def test_the_whole_service_says_which_extra_it_lacks(
    environment: Path, tmp_path: Path, settings: dict[str, str], remedy: str
) -> None:
    refused = subprocess.run(
        [environment / "bin" / "python", "-c", MAIN, "up"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=new_environment(tmp_path / "data", **settings),
    )  # fmt: skip
    assert (refused.returncode, refused.stderr) == (1, f"PushHub cannot start: {remedy}\n")


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert first is not None and first[1] == __version__


def test_the_package_allows_the_versions_that_are_tested() -> None:
    """pyproject.toml has ranges; requirements.txt has the version of each dependency that the tests run with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: it for name, it in project["optional-dependencies"].items() if name != "tracing"}
    allowed = map(Requirement, [*project["dependencies"], *itertools.chain(*extras.values())])
    ranges = {requirement.name: requirement for requirement in allowed if requirement.name != "pushhub"}
    lines = re.findall(r"^[A-Za-z0-9][^#\n]*", (ROOT / "requirements.txt").read_text(), re.M)
    pins = {requirement.name: requirement for requirement in map(Requirement, lines)}
    assert set(ranges) == set(pins)
    for name, pin in pins.items():
        assert pin.extras == ranges[name].extras
        (version,) = [specifier.version for specifier in pin.specifier]
        assert ranges[name].specifier.contains(version), name
