"""Google's clients in several languages run the same cases against one server; clients/ has a program for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deliveries.models import Delivery
from tests.compatibility import packages
from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.programs import has_rust

FOLDER = Path(__file__).parent / "clients"
#: The cases that every client runs.
CASES = (
    *("publish", "ordered", "streaming", "exactly-once", "dead-letters", "schemas", "iam", "tracing", "idle"),
    "shutdown",
)
#: Seconds that the case `idle` waits. Longer pauses are tested by hand.
IDLE_SECONDS = os.environ.get("IDLE_SECONDS", "1")


def _python() -> list[str]:
    return [sys.executable, "-W", "ignore", str(FOLDER / "python" / "cases.py")]


def _node() -> list[str]:
    return ["env", f"NODE_PATH={packages.node_modules(FOLDER / 'node')}", "node", str(FOLDER / "node" / "cases.js")]


def _java() -> list[str]:
    options = ["-XX:TieredStopAtLevel=1", "-Xmx256m"]
    return ["java", *options, "-cp", packages.java_classpath(FOLDER / "java"), "Cases"]


def _go() -> list[str]:
    return [str(packages.go_program(FOLDER / "go"))]


def _rust() -> list[str]:
    return [str(packages.rust_program(FOLDER / "rust"))]


#: How to build and start each program, and the cases that it runs besides CASES.
PROGRAMS: dict[str, tuple[Callable[[], list[str]], tuple[str, ...]]] = {
    "python": (_python, ()),
    "node": (_node, ()),
    "go": (_go, ("restarts", "ordered-streams")),
    "java": (_java, ()),
}
if has_rust():  # Even CI leaves the Rust client out if cargo is missing; tests/programs.py reports that.
    PROGRAMS["rust"] = (_rust, ())


class Program:
    """A program that runs a case for each line that it reads."""

    def __init__(self, command: list[str], *, address: str) -> None:
        environment = os.environ | {"PUBSUB_EMULATOR_HOST": address, "IDLE_SECONDS": IDLE_SECONDS}
        # Node's client would look for the metadata server of Google's machines, which takes seconds.
        environment["METADATA_SERVER_DETECTION"] = "none"
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, case: str) -> dict[str, str]:
        """Run a case; its result has an `error`, which is empty when the case passes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{case}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the program ended"
        result: dict[str, str] = json.loads(line)
        return result

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest, grpc_process: GrpcServer) -> Iterator[Program]:
    command, _ = PROGRAMS[request.param]
    program = Program(command(), address=grpc_process.address)
    try:
        yield program
    finally:
        program.close()


@pytest.mark.parametrize(
    ("program", "case"),
    [(name, case) for name, (_, more) in PROGRAMS.items() for case in (*CASES, *more)],
    indirect=["program"],
)
def test_a_client_passes_a_case(server: GrpcServer, program: Program, case: str) -> None:
    assert program.run(case) == {"case": case, "error": ""}
    wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
