"""Python imports a module of this name when it starts, in processes that have this folder on their path.

That is the only way into all of Spark's Python processes: those that plan a read or a write of a data source start
from a module that no setting names. A module of this name that the machine has for other programs is not imported.
"""

from __future__ import annotations

from deliveries.pipeline.workers.pythonpath import shorten_path

shorten_path()
