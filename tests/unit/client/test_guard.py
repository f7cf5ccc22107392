"""The address guard against a table that was typed from the registries, not computed."""

from __future__ import annotations

import csv
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis.strategies import ip_addresses

from pushhub.common.addresses import DENIED_V4, DENIED_V6, AddressGuard

with (Path(__file__).parents[2] / "data" / "addresses.csv").open(encoding="utf-8", newline="") as file:
    ADDRESSES = list(csv.DictReader(file))


def verdict(guard: AddressGuard, address: str, port: int = 443) -> str:
    return "deny" if guard.why_denied(address, port) else "allow"


def test_the_table_is_large() -> None:
    assert len(ADDRESSES) >= 200


@pytest.mark.parametrize("row", ADDRESSES, ids=lambda row: f"{row['address']} {row['about']}")
def test_address(row: dict[str, str]) -> None:
    assert verdict(AddressGuard(), row["address"]) == row["by_default"]
    assert verdict(AddressGuard(allow_private=True), row["address"]) == row["with_allow_private"]


@given(address=ip_addresses())
def test_what_python_does_not_call_global_is_denied(address: IPv4Address | IPv6Address) -> None:
    assert address.is_global or verdict(AddressGuard(), str(address)) == "deny"


@pytest.mark.parametrize("row", [*DENIED_V4, *DENIED_V6], ids=lambda row: row.block)
def test_a_row_is_lifted_by_its_own_block_and_not_by_a_wider_one(row: tuple[str, str, bool]) -> None:
    block = row[0]
    address = block.partition("/")[0]
    everything = "::/0" if ":" in block else "0.0.0.0/0"
    assert verdict(AddressGuard(allowed_networks=[everything]), address) == "deny"
    lifted = verdict(AddressGuard(allowed_networks=[block]), address)
    # The first address of ::/3 has a narrower row, and those of the others carry 0.0.0.0.
    denied = {"::/3", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"}
    assert lifted == ("deny" if block in denied else "allow")


@pytest.mark.parametrize(
    ("address", "networks", "expected"),
    [
        ("10.1.2.3", ["10.1.0.0/16"], "allow"),
        ("10.2.2.3", ["10.1.0.0/16"], "deny"),
        ("::ffff:10.1.2.3", ["10.1.0.0/16"], "allow"),
        ("100.100.100.200", ["100.64.0.0/10"], "deny"),
        ("100.100.100.200", ["100.100.100.200/32"], "allow"),
        ("169.254.169.254", ["169.254.169.254/32"], "allow"),
        ("::1", ["::1/128"], "allow"),
        ("fd12::1", ["fd12::/16"], "allow"),
        ("fd00:ec2::254", ["fd00::/8"], "deny"),
        ("5f00::1", ["5f00::/16"], "allow"),
        ("5f01::1", ["5f00::/16"], "deny"),
        # With DNS64, the address behind the translator is checked as well.
        ("64:ff9b::8.8.8.8", ["64:ff9b::/96"], "allow"),
        ("64:ff9b::127.0.0.1", ["64:ff9b::/96"], "deny"),
        ("64:ff9b::169.254.169.254", ["64:ff9b::/96"], "deny"),
        ("64:ff9b::10.0.0.1", ["64:ff9b::/96", "10.0.0.0/8"], "allow"),
        ("64:ff9b:1::8.8.8.8", ["64:ff9b:1::/48"], "allow"),
        ("64:ff9b:1:fffe::127.0.0.1", ["64:ff9b:1::/48"], "deny"),
        ("64:ff9b:1::169.254.169.254", ["64:ff9b:1::/48"], "deny"),
        ("64:ff9b:1::10.0.0.1", ["64:ff9b:1::/48", "10.0.0.0/8"], "allow"),
        ("2002:808:808::1", ["2002::/16"], "allow"),
        ("2002:7f00:1::1", ["2002::/16"], "deny"),
        ("::8.8.8.8", ["::/96"], "allow"),
        ("::127.0.0.1", ["::/96"], "deny"),
    ],
)
def test_allow_list(address: str, networks: list[str], expected: str) -> None:
    assert verdict(AddressGuard(allowed_networks=networks), address) == expected


def test_a_bad_allow_list_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="banana"):
        AddressGuard(allowed_networks=["banana"])
    with pytest.raises(ValueError, match="host bits"):
        AddressGuard(allowed_networks=["10.1.2.3/8"])


@pytest.mark.parametrize(
    ("listener", "address", "port", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", 8000, "deny"),
        ("127.0.0.1", "::ffff:127.0.0.1", 8000, "deny"),
        ("127.0.0.1", "127.0.0.1", 8001, "allow"),
        ("127.0.0.1", "127.0.0.2", 8000, "allow"),
        ("0.0.0.0", "127.0.0.2", 8000, "deny"),
        ("0.0.0.0", "::1", 8000, "deny"),
        ("0.0.0.0", "8.8.8.8", 8000, "allow"),
        ("::", "127.0.0.1", 8000, "deny"),
        ("localhost", "::1", 8000, "deny"),
        ("8.8.4.4", "8.8.4.4", 8000, "deny"),
    ],
)
def test_own_listeners(listener: str, address: str, port: int, expected: str) -> None:
    guard = AddressGuard(allow_private=True, own_listeners=[(listener, 8000)])
    assert verdict(guard, address, port) == expected
