"""Where the driver of a Spark session listens."""

from __future__ import annotations

import socket

import pytest

from deliveries.pipeline.session import driver_address
from pushhub.common.errors import InvalidArgument


def listening(address: str) -> dict[str, str]:
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077"])
def test_the_driver_of_this_machine_listens_on_loopback(master: str) -> None:
    assert driver_address(master) == listening("127.0.0.1")


def test_the_driver_of_a_cluster_listens_where_it_reaches_the_master(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a master on another machine, then the driver does not listen on loopback: executors cannot reach that."""

    class Probe(socket.socket):
        def connect(self, address: object) -> None:
            assert address == ("10.9.8.7", 7077)

        def getsockname(self) -> tuple[str, int]:
            return ("10.9.8.1", 40_000)

    monkeypatch.setattr(socket, "socket", Probe)
    assert driver_address("spark://10.9.8.7:7077,10.9.8.8:7077") == listening("10.9.8.1")


def test_with_a_resource_manager_spark_chooses_the_address() -> None:
    assert driver_address("k8s://https://10.0.0.1:6443") == {}
    assert driver_address("yarn") == {}


def test_an_unknown_master_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"The Spark master nowhere\.invalid cannot be reached"):
        driver_address("spark://nowhere.invalid:7077")
