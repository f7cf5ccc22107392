"""The options of a read: the archive and its columns, and a topic and a time, which choose files before Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deliveries.pipeline.archiving.columns import COLUMNS
from deliveries.pipeline.archiving.manifest import ManifestFile, read_manifest
from deliveries.rules.ids import first_id_at
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import parse_topic
from pushhub.common.protojson import parse_timestamp
from pushhub.common.stores import Store

if TYPE_CHECKING:
    import pyarrow.compute as pc
    from pyspark.sql.types import StructType

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
        require_known(options, KNOWN)
        archive = options.get("archive") or options.get("path")
        if not archive:
            raise InvalidArgument("Give the option subscription, or archive, which is a folder.", field="archive")
        columns = columns_of(schema, COLUMNS, of="The archive")
        topic = options.get("topic", "")
        if topic:
            parse_topic(topic, field="topic")
        since, until = (_moment(options, name) for name in ("from", "to"))
        return cls(archive, columns, topic, since, until)

    @property
    def project(self) -> str:
        return parse_topic(self.topic, field="topic")[0]

    def files(self) -> list[ManifestFile]:
        """Return the files of the archive that may have such messages, according to the manifest."""
        return [file for file in read_manifest(Store(self.archive)) if self.may_have(file)]

    def may_have(self, file: ManifestFile) -> bool:
        if self.topic and file.project != self.project:
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
            expression &= (ds.field("project") == self.project) & (ds.field("topic") == self.topic)
        if self.since is not None:
            expression &= ds.field("publish_time") >= self.since
        if self.until is not None:
            expression &= ds.field("publish_time") < self.until
        return expression


def require_known(options: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise InvalidArgument for an option whose lower-case name is not known."""
    if unknown := sorted(name for name in options if name.lower() not in known):
        raise InvalidArgument(f"There is no option {unknown[0]!r}.", field=unknown[0])


def require_columns(names: Iterable[str], known: Mapping[str, str], *, of: str) -> None:
    for name in names:
        if name not in known:
            raise InvalidArgument(f"{of} has no column {name!r}. It has: {', '.join(known)}.", field=name)


def columns_of(schema: StructType, known: Mapping[str, str], *, of: str) -> tuple[str, ...]:
    """Return the columns of a user's schema, which may choose among the known ones and not change their types."""
    require_columns(schema.fieldNames(), known, of=of)
    for field in schema.fields:
        if (kind := field.dataType.simpleString()) != known[field.name]:
            raise InvalidArgument(f"The column {field.name} is {known[field.name]}, not {kind}.", field=field.name)
    return tuple(schema.fieldNames())


def number_of(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that is a number. Raises InvalidArgument."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise InvalidArgument(f"The option {name} is a number above 0, not {text!r}.", field=name)
    return int(text)


def _moment(options: Mapping[str, str], name: str) -> datetime | None:
    return parse_timestamp(options[name], field=name).astimezone(UTC) if options.get(name) else None


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
