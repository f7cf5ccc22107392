"""The order in which the tests begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scheduling import GROUPS, LONGEST, SCATTERED, WAITING, GroupScheduling, group_of, ordered

ROOT = Path(__file__).parents[2]


def item(nodeid: str) -> Any:
    return SimpleNamespace(nodeid=nodeid)


def test_long_groups_begin_first_and_then_those_with_the_most_tests() -> None:
    few, many = (
        "tests/unit/test_layering.py::test_a",
        ["tests/unit/test_citations.py::test_a", "tests/unit/test_citations.py::test_b"],
    )
    cluster, archive = "tests/pipeline/test_cluster.py::test_a", "tests/pipeline/test_archive.py::test_a"
    rollup = "tests/pipeline/test_rollup.py::test_a"
    collected = [item(nodeid) for nodeid in (few, *many, archive, cluster, rollup)]
    assert [item.nodeid for item in ordered(collected)] == [archive, rollup, cluster, *many, few]


def test_tests_of_a_scattered_file_begin_early_in_any_process() -> None:
    collected = [item("tests/unit/test_citations.py::test_a"), *(item(f"{SCATTERED[0]}::test_{x}") for x in "ab")]
    first, second, _ = ordered(collected)
    assert (first, second) == (collected[1], collected[2])
    assert group_of(first.nodeid) != group_of(second.nodeid)


def test_every_long_group_exists() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {*GROUPS, *SCATTERED} <= files
    assert set(LONGEST) | WAITING <= files | set(GROUPS.values())
    assert not (set(LONGEST) | WAITING) & set(GROUPS)


class Process:
    """Stands for one of pytest-xdist's processes, and keeps the numbers of the tests that it is given."""

    gateway = SimpleNamespace(id="gw0")
    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduler_of(
    processes: list[Process],
    nodeids: list[str],
    *,
    waiting_share: float = 0.5,
    when_all_are_sent: Callable[[], None] = lambda: None,
) -> GroupScheduling:
    """Return a scheduler that has given the processes their first tests."""
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(processes), option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = GroupScheduling(config, None, waiting_share=waiting_share, when_all_are_sent=when_all_are_sent)
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, nodeids)
    scheduler.schedule()
    return scheduler


def test_it_is_told_once_every_test_is_sent_though_not_all_are_done() -> None:
    process, told = Process(), []
    nodeids = [f"tests/unit/test_{file}.py::test_{test}" for file in "abc" for test in "123"]
    done: list[int] = []
    scheduler = scheduler_of([process], nodeids, when_all_are_sent=lambda: told.append((len(process.given), len(done))))
    while len(done) < len(nodeids):
        done.append(process.given[len(done)])
        scheduler.mark_test_complete(process, done[-1])
    assert told[0] == (9, 4)
    assert {given for given, _ in told} == {9}


@pytest.mark.parametrize(("share", "at_once"), [(0.25, 1), (0.5, 2)])
def test_a_share_of_the_processes_gets_tests_that_wait(share: float, at_once: int) -> None:
    """Given groups that wait before groups that compute, when four processes run them, then few wait at a time."""
    waiting = sorted(WAITING)[: 2 * at_once]
    computing = [f"tests/unit/test_{letter}.py" for letter in "abcdefgh"[: 8 - 2 * at_once]]
    nodeids = [f"{file}::test_{test}" for file in (*waiting, *computing) for test in range(6)]
    processes = [Process() for _ in range(4)]
    scheduler = scheduler_of(processes, nodeids, waiting_share=share)
    for turn in range(12):
        running = [nodeids[process.given[turn]] for process in processes]
        assert sum(nodeid.partition("::")[0] in WAITING for nodeid in running) == at_once
        for process in processes:
            scheduler.mark_test_complete(process, process.given[turn])
    assert sorted(number for process in processes for number in process.given) == list(range(len(nodeids)))
