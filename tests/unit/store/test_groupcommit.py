"""Many threads' commits combined into one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from deliveries.store.groupcommit import GROUP_SIZE, GroupCommit
from tests.ports import wait_for


class Disk:
    """Commits slowly: the first commit waits until the test releases it. A "bad" request fails its whole group."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.ended = False

    def commit(self, requests: Sequence[str]) -> list[str]:
        self.groups.append(list(requests))
        if "first" in requests:
            self.entered.set()
            assert self.go_on.wait(60)
        if "bad" in requests:
            raise ValueError("bad")
        if "end" in requests and not self.ended:
            self.ended = True
            raise SystemExit
        return [request.upper() for request in requests]


def committed(disk: Disk, names: Sequence[str]) -> dict[str, Future[str]]:
    """Return the outcomes of requests that all came during the first commit."""
    groups = GroupCommit(disk.commit)
    with ThreadPoolExecutor(max_workers=len(names) + 1) as pool:
        futures = {"first": pool.submit(groups.commit, "first")}
        assert disk.entered.wait(60)
        for name in names:
            before = len(groups._waiting)
            futures[name] = pool.submit(groups.commit, name)
            wait_for(lambda before=before: len(groups._waiting) > before, what="the request")  # type: ignore[misc]
        disk.go_on.set()
    return futures


def test_requests_that_wait_are_committed_together_in_their_order() -> None:
    disk = Disk()
    futures = committed(disk, ["b", "a", "c"])
    assert {name: future.result() for name, future in futures.items()} == {
        "first": "FIRST",
        "a": "A",
        "b": "B",
        "c": "C",
    }
    assert disk.groups == [["first"], ["b", "a", "c"]]


def test_a_bad_request_fails_alone() -> None:
    disk = Disk()
    futures = committed(disk, ["a", "bad", "c"])
    assert futures["a"].result() == "A" and futures["c"].result() == "C"
    with pytest.raises(ValueError, match="bad"):
        futures["bad"].result()
    assert disk.groups[1:] == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


def test_a_thread_that_ends_in_the_middle_leaves_the_others_their_turn() -> None:
    disk = Disk()
    futures = committed(disk, ["a", "end", "c"])
    assert sum(isinstance(future.exception(), SystemExit) for future in futures.values()) == 1
    assert disk.groups == [["first"], ["a", "end", "c"], ["a", "end", "c"]]


def test_a_group_has_a_bounded_number_of_requests() -> None:
    disk = Disk()
    committed(disk, [str(number) for number in range(GROUP_SIZE + 3)])
    assert [len(group) for group in disk.groups] == [1, GROUP_SIZE, 3]


def test_a_group_weighs_no_more_than_allowed_unless_it_is_one_request() -> None:
    disk = Disk()
    groups: GroupCommit[str, str] = GroupCommit(disk.commit, weigh=len, most=6)
    with ThreadPoolExecutor(max_workers=5) as pool:
        pool.submit(groups.commit, "first")
        assert disk.entered.wait(60)
        for name in ("aaa", "bbb", "cccccccc", "d"):
            before = len(groups._waiting)
            pool.submit(groups.commit, name)
            wait_for(lambda before=before: len(groups._waiting) > before, what="the request")  # type: ignore[misc]
        disk.go_on.set()
    assert disk.groups == [["first"], ["aaa", "bbb"], ["cccccccc"], ["d"]]


def test_the_next_request_is_a_group_of_its_own() -> None:
    disk = Disk()
    groups = GroupCommit(disk.commit)
    assert [groups.commit("a"), groups.commit("b")] == ["A", "B"]
    assert disk.groups == [["a"], ["b"]]
