"""The pipeline uses Spark's DataFrames only, so that nothing rules out Spark Connect."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PIPELINE = Path(__file__).parents[3] / "deliveries" / "pipeline"
#: Attributes that a client of Spark Connect lacks.
CLASSIC = frozenset(
    {"rdd", "sparkContext", "SparkContext", "foreachPartition", "_jdf", "_jsc", "_jsparkSession", "_jvm"}
)


#: This one makes a file for the driver's Java, and runs nothing else.
LEFT_OUT = PIPELINE / "classarchive.py"


@pytest.mark.parametrize(
    "path", sorted({*PIPELINE.rglob("*.py")} - {LEFT_OUT}), ids=lambda path: path.relative_to(PIPELINE).as_posix()
)
def test_no_module_uses_what_needs_the_driver_s_java(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    used = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    used |= {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}
    assert used & CLASSIC == set()
