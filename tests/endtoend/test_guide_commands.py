"""Every command and snippet of these pages of the guide works, in the order of the page, on one PushHub."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import requests

from tests.endtoend.running import ROOT, Running, environment, running
from tests.ports import free_port, wait_for

#: In the guide's order: a reader has the topics of the pages before in the same project.
PAGES = (
    *("first-push", "push", "authentication", "pull", "ordering", "dead-letters", "filters", "schemas", "cli"),
    *("deployment", "upgrading", "backup", "metrics", "troubleshooting", "iam", "identity", "migration"),
)
#: It prints what Google's prints of a topic and a subscription.
GCLOUD = """gcloud() { case $2 in
  topics) echo '{"name": "projects/my-shop/topics/orders", "state": "ACTIVE"}' ;;
  *) echo '{"name": "projects/my-shop/subscriptions/billing", "topic": "projects/my-shop/topics/orders",
    "ackDeadlineSeconds": 10, "expirationPolicy": {"ttl": "2678400s"}, "pushConfig": {}, "state": "ACTIVE"}' ;;
esac; }"""
BLOCK = re.compile(r"^```(?P<language>sh|python|text)\n(?P<text>.*?)^```$", re.M | re.S)
#: What the fixture has done already.
STARTS_PUSHHUB = "make up\n"
#: A block with such a command needs containers, root or another release.
ELSEWHERE = re.compile(r"^(docker|git|sudo) ", re.M)
#: A block that shows a failure says so.
FAILS = "exits with 1"
VOLATILE = re.compile(r"\d\d:\d\d:\d\d|\d{6,}")
DONE = "__done__"
#: What `createsuperuser` asks for.
LOGIN = {"USERNAME": "ada", "EMAIL": "ada@example.com", "PASSWORD": "correct horse battery"}


@pytest.fixture(scope="module")
def pushhub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(environment(tmp_path_factory.mktemp("guide"), PUSHHUB_SPARK="off")) as instance:
        wait_for(lambda: has_maintenance(instance), what="a sign of life of the maintenance worker")
        instance.put("topics/first", {})  # which makes the project
        yield instance


def has_maintenance(pushhub: Running) -> bool:
    """Return whether a diagnosis would find the maintenance worker alive: its first sign comes some seconds later."""
    components = requests.get(f"{pushhub.api}/readyz", timeout=10).json()["components"]
    return bool(components["maintenance"]["status"] == "ok")


@dataclass
class Terminal:
    """A shell in a folder with PushHub's data, into which blocks are pasted one after the other."""

    process: subprocess.Popen[bytes]
    output: Path
    blocks: int = 0
    #: Where in the output the last block begins.
    position: int = 0

    def printed(self) -> str:
        return self.output.read_text(encoding="utf-8")[self.position :]

    def paste(self, text: str) -> None:
        """Run a block, and wait for its end. Commands in the background go on."""
        self.position = len(self.output.read_text(encoding="utf-8"))
        self.blocks += 1
        done = f"{DONE} {self.blocks}"
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\necho {done}\n".encode())
        self.process.stdin.flush()
        wait_for(lambda: f"{done}\n" in self.printed() or self.process.poll() is not None, what=f"the end of:\n{text}")
        failed = re.findall(r"^__failed__ (.*)$", self.printed(), re.M)
        assert bool(failed) == (FAILS in text), self.printed()

    def expect(self, text: str) -> None:
        """Wait until each line was printed, with any time for a time and any message id for a message id."""
        for line in filter(None, map(str.strip, text.splitlines())):
            pattern = re.compile(VOLATILE.sub(r"[\\d:]+", re.sub(r"(\\ )+", r"\\s+", re.escape(line))))
            try:
                wait_for(partial(self._has, pattern))
            except AssertionError:
                pytest.fail(f"not printed: {line!r}\n{self.printed()}")

    def _has(self, pattern: re.Pattern[str]) -> bool:
        return pattern.search(self.printed()) is not None


@pytest.fixture
def terminal(pushhub: Running, tmp_path: Path) -> Iterator[Terminal]:
    output = tmp_path / "terminal"
    (tmp_path / ".pushhub").symlink_to(pushhub.environment["PUSHHUB_DATA"])
    login = {f"DJANGO_SUPERUSER_{name}": value for name, value in LOGIN.items()}
    path = f"{ROOT / 'bin'}:{os.environ['PATH']}"
    variables = {**pushhub.environment, **login, "PATH": path, "HOME": str(tmp_path), "PUSHHUB_PROJECT": "demo"}
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "--norc"], cwd=tmp_path, env=variables, start_new_session=True,
            stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT,
        )  # fmt: skip
    terminal = Terminal(process, output)
    terminal.paste("trap 'echo \"__failed__ $BASH_COMMAND\"' ERR; set -m")
    terminal.paste(GCLOUD)
    try:
        yield terminal
    finally:
        assert process.stdin is not None
        process.stdin.write(b"kill $(jobs -p) 2>/dev/null; exit\n")
        process.stdin.close()
        process.wait()


def adapt(text: str, pushhub: Running, port: int) -> str:
    """Return a page's text with the ports of this test, and without what needs containers or asks questions."""
    text = re.sub("^curl ", "curl --fail ", text, flags=re.M)
    text = text.replace("docker compose exec web python manage.py", "pushhub")
    text = text.replace("createsuperuser\n", "createsuperuser --noinput\n")
    text = text.replace("127.0.0.1:8085", pushhub.environment["PUSHHUB_GRPC"])
    text = text.replace("127.0.0.1:8000", pushhub.environment["PUSHHUB_HTTP"])
    return re.sub(r"(--port |127\.0\.0\.1:|port )8080\b", rf"\g<1>{port}", text)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_do_what_it_says(
    page: str, pushhub: Running, terminal: Terminal, tmp_path: Path
) -> None:
    port = free_port()
    text = adapt((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), pushhub, port)
    ran = 0
    for match in BLOCK.finditer(text):
        if match["language"] == "text":
            terminal.expect(match["text"])
        elif match["text"] != STARTS_PUSHHUB and not ELSEWHERE.search(match["text"]):
            ran += 1
            script = tmp_path / f"{ran}.py"
            script.write_text(match["text"], encoding="utf-8")
            is_python = match["language"] == "python"
            terminal.paste(f"{sys.executable} {script}" if is_python else match["text"])
    assert ran > 0
