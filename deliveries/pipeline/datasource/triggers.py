"""What Spark's versions have for the limits of a stream's batches."""

from __future__ import annotations

__all__ = ["SupportsTriggerAvailableNow", "limits"]

try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:  # before 4.2, Spark reads everything in one batch
    limits = None


class NoTrigger:
    """Stands for what a source needs for the trigger availableNow, on a Spark where it needs nothing."""


SupportsTriggerAvailableNow: type = limits.SupportsTriggerAvailableNow if limits else NoTrigger
