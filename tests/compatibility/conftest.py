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


@pytest.fixture(scope="session")
def node(grpc_process: GrpcServer, node_modules: Path) -> Iterator[Node]:
    """One process of Node: to start it and to load the client takes as long as several tests."""
    client = Node(node_modules, os.environ | {"PUBSUB_EMULATOR_HOST": grpc_process.address})
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="session", params=["python-grpc", "python-rest", "node"])
def kind(request: pytest.FixtureRequest) -> str | Node:
    """Each kind of client in turn; Node's, which outlives a test, is started before the test begins."""
    kind: str = request.param
    return request.getfixturevalue("node") if kind == "node" else kind


@pytest.fixture
def client(kind: str | Node, server: GrpcServer) -> Iterator[Driver]:
    """Each client in turn."""
    if isinstance(kind, Node):
        yield kind
        return
    driver: Driver = PythonGrpc() if kind == "python-grpc" else PythonRest(server.address)
    try:
        yield driver
    finally:
        driver.close()
