"""The data source's name, options and schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from deliveries.pipeline.archiving.columns import COLUMNS, spark_schema
from deliveries.pipeline.datasource.options import Selection, require_columns
from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from deliveries.pipeline.datasource.writer import Publisher, StreamPublisher

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class PushHubDataSource(DataSource):
    """Reads a subscription or an archive, and publishes. No option is a secret: Spark shows options in its plans."""

    @classmethod
    def name(cls) -> str:
        return "pushhub"

    def schema(self) -> str:
        if self.options.get("subscription"):
            from deliveries.pipeline.datasource.messagecolumns import SCHEMA

            return SCHEMA
        names = self.options.get("columns", "")
        chosen = tuple(name.strip() for name in names.split(",")) if names else tuple(COLUMNS)
        require_columns(chosen, COLUMNS, of="The archive")
        return spark_schema(chosen)

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.options.get("subscription"):
            from deliveries.pipeline.datasource.subscription import Source, SubscriptionReader

            return SubscriptionReader(Source.of(self.options, schema, trigger=False))
        from deliveries.pipeline.datasource.reader import ArchiveReader

        return ArchiveReader(Selection.of(self.options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        if self.options.get("subscription"):
            from deliveries.pipeline.datasource.subscription import Source, SubscriptionStreamReader
            from deliveries.pipeline.datasource.triggers import limits

            if limits is None:
                raise InvalidArgument("A stream of a subscription needs Spark 4.2 or newer.", field="subscription")
            return SubscriptionStreamReader(Source.of(self.options, schema, trigger=True))
        from deliveries.pipeline.datasource.streaming import ArchiveStreamReader

        return ArchiveStreamReader(Selection.of(self.options, schema), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> Publisher:
        from deliveries.pipeline.datasource.writer import Destination, Publisher

        if overwrite:
            raise InvalidArgument('A topic cannot be overwritten: give mode("append").', field="mode")
        return Publisher(Destination.of(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamPublisher:  # noqa: N802 - Spark's name
        from deliveries.pipeline.datasource.writer import Destination, StreamPublisher

        if overwrite:
            raise InvalidArgument('A topic is written to in the output mode "append".', field="outputMode")
        return StreamPublisher(Destination.of(self.options, schema))


def register(session: SparkSession) -> None:
    """Make `format("pushhub")` known to a session, and let Spark hand its filters to Python data sources."""
    session.conf.set(PUSHDOWN, "true")
    session.dataSource.register(PushHubDataSource)
