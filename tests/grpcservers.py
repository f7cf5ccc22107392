"""A real gRPC server for tests: `python -m pushhub.runtime.grpcserver` on the test's own database and Redis."""

from __future__ import annotations

from typing import Self

from tests.ownprocess import OwnProcess
from tests.ports import free_port, wait_for


class GrpcServer(OwnProcess):
    """One server process; `rest` is the address of the web server to which its port forwards REST."""

    def __init__(self, redis_url: str, *, rest: str, first: str = "", **settings: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        addresses = {"PUSHHUB_GRPC": self.address, "PUSHHUB_GRPC_REST": rest.removeprefix("http://")}
        super().__init__("pushhub.runtime.grpcserver", redis_url=redis_url, settings=addresses | settings, first=first)

    def __enter__(self) -> Self:
        wait_for(lambda: self.process.poll() is not None or "gRPC at" in self.log, what="gRPC")
        assert self.process.poll() is None, self.log
        return self
