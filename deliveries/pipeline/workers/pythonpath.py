"""Makes Spark's Python processes import pyspark from its folder, not from archives.

Spark puts a zip with a copy of pyspark and one of its jars in front of everything else on Python's path. A process
compiles whatever it imports from the zip anew, and reads the directories of both archives anew before its first task.
Python 3.11 does so once for each package that was looked for in them (docs/pipeline-design.md#the-spark-session).
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from pathlib import Path


def without_archives(path: list[str]) -> list[str]:
    """Return Python's path without the archives inside pyspark's folder, if that folder can be imported from the rest.

    Archives of another Spark stay, as its tasks need its own pyspark.
    """
    rest = [entry for entry in path if not Path(entry).is_file()]
    spec = PathFinder.find_spec("pyspark", rest)
    if spec is None or not spec.submodule_search_locations or PathFinder.find_spec("py4j", rest) is None:
        return path
    home = Path(spec.submodule_search_locations[0])
    return [entry for entry in path if entry in rest or home not in Path(entry).parents]


def shorten_path() -> None:
    """Take pyspark's archives from the path of this process."""
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
