"""The order in which the tests begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.scheduling import GROUPS, LONGEST, SCATTERED, group_of, ordered

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
    assert set(LONGEST) <= files | set(GROUPS.values())
    assert not set(LONGEST) & set(GROUPS)
