"""The options of a read: the archive and its columns, and a topic and a time, which choose files before Spark reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deliveries.pipeline.archiving.columns import COLUMNS
from deliveries.rules.ids import first_id_at
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import parse_topic
from pushhub.common.protojson import parse_timestamp

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql.types import StructType

    from deliveries.pipeline.archiving.manifest import ManifestFile

KNOWN = frozenset({"archive", "path", "columns", "topic", "from", "to", "maxrowsperbatch"})


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages of a topic, or of all, that were published from `since` to before `until`."""

    archive: str
    columns: tuple[str, ...]
    topic: str = ""
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Selection:
        """Read the options. Raises InvalidArgument, which names the wrong option."""
        if unknown := sorted(name for name in options if name.lower() not in KNOWN):
            raise InvalidArgument(f"There is no option {unknown[0]!r}.", field=unknown[0])
        archive = options.get("archive") or options.get("path")
        if not archive:
            raise InvalidArgument("Give the option subscription, or archive, which is a folder.", field="archive")
        columns = columns_of(tuple(schema.fieldNames()))
        _require_types(schema)
        topic = options.get("topic", "")
        if topic:
            parse_topic(topic, field="topic")
        since, until = (_moment(options, name) for name in ("from", "to"))
        return cls(archive, columns, topic, since, until)

    def may_have(self, file: ManifestFile) -> bool:
        """Return whether a file of the archive may have such messages, according to the manifest."""
        if self.topic and file.project != parse_topic(self.topic, field="topic")[0]:
            return False
        if self.since is not None and file.last_id < first_id_at(_ms(self.since)):
            return False
        # A part of a millisecond counts: messages of the same millisecond were published before it.
        return self.until is None or file.first_id < first_id_at(_ms(self.until) + 1)

    def expression(self) -> pc.Expression:
        """Return Arrow's expression for the messages. Arrow skips row groups whose statistics exclude them."""
        import pyarrow.dataset as ds

        expression = ds.scalar(True)
        if self.topic:
            expression &= ds.field("project") == parse_topic(self.topic, field="topic")[0]
            expression &= ds.field("topic") == self.topic
        if self.since is not None:
            expression &= ds.field("publish_time") >= self.since
        if self.until is not None:
            expression &= ds.field("publish_time") < self.until
        return expression


def columns_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names. Raises InvalidArgument for a column that the archive does not have."""
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgument(f"The archive has no column {name!r}. It has: {', '.join(COLUMNS)}.", field="columns")
    return names


def _require_types(schema: StructType) -> None:
    """Raise InvalidArgument if a user's schema changes the type of a column. It may only choose columns."""
    for field in schema.fields:
        if field.dataType.simpleString() != COLUMNS[field.name]:
            raise InvalidArgument(
                f"The column {field.name} is {COLUMNS[field.name]}, not {field.dataType.simpleString()}.",
                field=field.name,
            )


def _moment(options: Mapping[str, str], name: str) -> datetime | None:
    return parse_timestamp(options[name], field=name).astimezone(UTC) if options.get(name) else None


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
