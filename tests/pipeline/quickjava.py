"""Spark's options for jobs of seconds. Programs import this before they set Django up."""

from __future__ import annotations

from deliveries.pipeline import classarchive
from deliveries.pipeline.session import COLLECTOR, SHORT_JOB

#: Java for commands of seconds, in which its second compiler would cost more than it gains.
QUICK_JAVA = f"{COLLECTOR} {SHORT_JOB}"
#: The settings of Spark for such a command in a process of its own, in the form of the variable PUSHHUB_SPARK_CONF.
QUICK_SPARK = f"spark.driver.extraJavaOptions={QUICK_JAVA},spark.sql.shuffle.partitions=2"
#: The same for a Java that PushHub does not start, with the archive of classes that PushHub's own sessions have.
ARCHIVED_JAVA = " ".join([QUICK_JAVA, *classarchive.options()])
#: The head of the variable PYSPARK_SUBMIT_ARGS for a session that Spark itself starts.
QUICK_SUBMIT = f"--driver-memory 512m --driver-java-options '{ARCHIVED_JAVA}' --conf spark.ui.enabled=false"
