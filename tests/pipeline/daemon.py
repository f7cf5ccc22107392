"""Spark's daemon of Python workers. It sets Django up as a task would, and forks workers that need not do so again.

A worker gets nothing else of the daemon's: no connection is open before the fork. Its settings are those with which the
session began, so its tasks have no journal.
"""

from __future__ import annotations

import gc
import importlib

import django

#: What tasks import, most of it not before their first row. Arrow imports pandas when it creates its first array.
MODULES = (
    "deliveries.pipeline.datasource.reader",
    "deliveries.pipeline.datasource.writer",
    "deliveries.pipeline.publishing.parts",
    "deliveries.publish.service",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.worker",
)

if __name__ == "__main__":
    django.setup()
    for module in MODULES:
        importlib.import_module(module)
    from pyspark.daemon import manager

    gc.freeze()
    manager()
