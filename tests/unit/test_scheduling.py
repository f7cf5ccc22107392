"""The order in which the tests begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.scheduling import GROUPS, LONGEST, SCATTERED, WAITING, Groups

ROOT = Path(__file__).parents[2]


def taken(nodeids: Sequence[str], *, prefers_waiting: bool = False) -> list[list[str]]:
    """Return the groups of tests in the order in which a process gets them."""
    groups = Groups(nodeids)
    return [[nodeids[number] for number in groups.take(prefers_waiting=prefers_waiting)] for _ in range(len(groups))]


def test_long_groups_begin_first_and_then_those_with_the_most_tests() -> None:
    few, *many = (
        f"tests/unit/{name}" for name in ("test_layering.py::a", "test_citations.py::a", "test_citations.py::b")
    )
    cluster, archive, rollup = (f"tests/pipeline/test_{name}.py::test_a" for name in ("cluster", "archive", "rollup"))
    assert taken([few, *many, archive, cluster, rollup]) == [[archive, rollup], [cluster], many, [few]]


def test_tests_of_a_scattered_file_begin_early_in_any_process() -> None:
    scattered = [f"{SCATTERED[0]}::test_{x}" for x in "ab"]
    other = "tests/unit/test_citations.py::test_a"
    assert taken([other, *scattered], prefers_waiting=True) == [scattered[:1], scattered[1:], [other]]


def test_every_long_group_exists() -> None:
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert {*GROUPS, *SCATTERED} <= files
    assert {*LONGEST, *WAITING} <= files | set(GROUPS.values())
    assert not {*LONGEST, *WAITING} & set(GROUPS)


def test_tests_that_wait_run_beside_those_that_compute() -> None:
    waiting, *computing = (
        f"{file}::test_a"
        for file in (min(WAITING - {*SCATTERED}), "tests/unit/test_layering.py", "tests/unit/test_citations.py")
    )
    assert taken([*computing, waiting], prefers_waiting=True) == [[waiting], *([test] for test in computing)]
    assert taken([waiting, *computing]) == [*([test] for test in computing), [waiting]]


def test_tests_that_a_process_cannot_run_are_given_to_another() -> None:
    groups = Groups(["tests/unit/test_layering.py::test_a", "tests/unit/test_layering.py::test_b"])
    first, second = groups.take(prefers_waiting=False)
    groups.give_back([second])
    groups.give_back([])
    assert (first, len(groups)) == (0, 1)
    assert groups.take(prefers_waiting=False) == [1]
    assert groups.take(prefers_waiting=False) == []
