"""The servers that the clients call, and the clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compatibility import packages
from tests.compatibility.drivers import Driver, Node, PythonGrpc, PythonRest
from tests.grpcservers import GrpcServer


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Install the npm client in the versions of the Node cases' lock file."""
    return packages.node_modules(Path(__file__).parent / "clients" / "node")


@pytest.fixture
def node(server: GrpcServer, node_modules: Path) -> Iterator[Node]:
    client = Node(node_modules, dict(os.environ))
    try:
        yield client
    finally:
        client.close()


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
