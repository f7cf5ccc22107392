"""The clients of the project `shop`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compatibility.fields.trials import Shop
from tests.grpcservers import GrpcServer


@pytest.fixture
def shop(server: GrpcServer) -> Iterator[Shop]:
    """The clients of the project `shop`, which has the topic `orders`."""
    shop = Shop(server.address)
    shop.topic()
    yield shop
    shop.channel.close()
