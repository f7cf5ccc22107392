"""Spark's Python processes import pyspark from its folder if they can, and otherwise from Spark's archives."""

from __future__ import annotations

from pathlib import Path

import pytest

from deliveries.pipeline.workers.pythonpath import without_archives


def make_packages(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    return str(folder)


def make_archives(spark: Path) -> list[str]:
    """Make the archives of a Spark in its folder; return them in the order in which Spark puts them on the path."""
    paths = [spark / "python" / "lib" / name for name in ("pyspark.zip", "py4j-0-src.zip")]
    paths.append(spark / "jars" / "spark-core.jar")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return [str(path) for path in paths]


def test_the_archives_of_an_installed_pyspark_leave_the_path(tmp_path: Path) -> None:
    site = make_packages(tmp_path / "site", "pyspark", "py4j")
    archives = make_archives(tmp_path / "site" / "pyspark")
    other = tmp_path / "other.zip"
    other.touch()
    path = ["/service", *archives, str(other), "/no/python311.zip", site]
    assert without_archives(path) == ["/service", str(other), "/no/python311.zip", site]


@pytest.mark.parametrize("installed", [(), ("pyspark",), ("pyspark", "py4j")])
def test_the_archives_of_another_spark_stay(tmp_path: Path, installed: tuple[str, ...]) -> None:
    path = [*make_archives(tmp_path / "spark"), make_packages(tmp_path / "site", *installed)]
    assert without_archives(path) == path


def test_the_archives_stay_where_py4j_is_only_in_them(tmp_path: Path) -> None:
    site = make_packages(tmp_path / "site", "pyspark")
    path = [*make_archives(tmp_path / "site" / "pyspark"), site]
    assert without_archives(path) == path
