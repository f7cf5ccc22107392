"""The client that a proxy names."""

from __future__ import annotations

import pytest

from pushhub.common.peers import last_forwarded


@pytest.mark.parametrize(
    ("header", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("10.0.0.1, 192.0.2.1", "192.0.2.1"),  # the client itself sent the first
        ("192.0.2.1,2001:DB8::1 ", "2001:db8::1"),
        ("", ""),
        ("192.0.2.1, unknown", ""),
        ("192.0.2.1:4711", ""),
    ],
)
def test_the_last_entry_counts_if_it_is_an_address(header: str, address: str) -> None:
    assert last_forwarded(header) == address
