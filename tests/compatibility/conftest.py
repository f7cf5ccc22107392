"""The servers that clients meet, and the clients."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility.drivers import NODE, Driver, Node, PythonGrpc, PythonRest
from tests.grpcservers import GrpcServer
from tests.workers import ROOT


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """The npm client as its lock file says, installed once and kept beside the virtual environment."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = ROOT / ".venv" / "compatibility-node"
    lock = NODE / "package-lock.json"
    kept = folder / "package-lock.json"
    if not (kept.exists() and kept.read_bytes() == lock.read_bytes() and (folder / "node_modules").exists()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(NODE / name, folder / name)
        try:
            subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True, timeout=300)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return folder / "node_modules"


@pytest.fixture
def node(server: GrpcServer, node_modules: Path) -> Iterator[Node]:
    started = Node(node_modules, dict(os.environ))
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(params=["python-grpc", "python-rest", "node"])
def client(request: pytest.FixtureRequest, server: GrpcServer) -> Iterator[Driver]:
    """Each client in turn."""
    if request.param == "node":
        yield request.getfixturevalue("node")
        return
    driver: Driver = PythonGrpc() if request.param == "python-grpc" else PythonRest(server.address)
    try:
        yield driver
    finally:
        driver.close()
