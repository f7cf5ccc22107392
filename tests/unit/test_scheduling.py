"""The order in which the tests begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.scheduling import (
    COMPUTING_PROCESSES,
    GROUPS,
    LONGEST,
    SCATTERED,
    WAITING,
    GroupScheduling,
    group_of,
    ordered,
)

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
    assert {*LONGEST, *WAITING} <= files | set(GROUPS.values())
    assert not {*LONGEST, *WAITING} & set(GROUPS)


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


def scheduling(processes: Sequence[Process], nodeids: list[str]) -> Any:
    config: Any = SimpleNamespace(
        getvalue=lambda name: ["popen"] * len(processes), option=SimpleNamespace(loadscopereorder=False)
    )
    scheduler = GroupScheduling(config, None)
    for process in processes:
        scheduler.add_node(process)
        scheduler.add_node_collection(process, nodeids)
    scheduler.schedule()
    return scheduler


def test_tests_that_wait_run_beside_those_that_compute() -> None:
    processes = [Process() for _ in range(COMPUTING_PROCESSES + 2)]
    *computing, waiting, idle = processes
    files = [*sorted(WAITING - set(SCATTERED))[:1], *(f"tests/unit/test_{n}.py" for n in range(len(processes)))]
    scheduler = scheduling(processes, [f"{file}::test_{n}" for file in files for n in range(3)])

    def given(process: Process) -> list[str]:
        return [files[index // 3] for index in process.given[::3]]

    assert [given(process) for process in computing] == [[file] for file in files[1 : COMPUTING_PROCESSES + 1]]
    assert given(waiting) == [files[0]]
    # What it prefers is all given out.
    assert given(idle) == [files[COMPUTING_PROCESSES + 1]]
    scheduler.mark_test_complete(waiting, waiting.given[0])
    assert given(waiting) == [files[0], files[COMPUTING_PROCESSES + 2]]
