"""The manifest of an archive as a file beside its messages, for readers without the database. No Django here.

`manifest.csv` has a line for each file of the archive; `files.csv` has their paths alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from urllib.parse import quote, unquote

from pushhub.common.stores import Store

MANIFEST = "manifest.csv"
#: The paths of the manifest.
LISTING = "files.csv"


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file of the archive, with its first and last message id, and the first and last step of its messages."""

    path: str
    first_id: int
    last_id: int
    first_step: int
    last_step: int
    rows: int
    bytes: int

    @property
    def project(self) -> str:
        return project_of(self.path)


def write_manifest(store: Store, files: Iterable[ManifestFile]) -> None:
    """Write both lists, in place of the previous ones."""
    rows = list(files)
    names = [field.name for field in fields(ManifestFile)]
    store.write_bytes(MANIFEST, _csv([names, *map(astuple, rows)]))
    store.write_bytes(LISTING, _csv([["path"], *([row.path] for row in rows)]))


def read_manifest(store: Store) -> list[ManifestFile]:
    """Return the files of the archive; an empty list if nothing was archived yet."""
    lines = csv.DictReader(io.StringIO(store.read_text(MANIFEST)))
    return [ManifestFile(line.pop("path"), **{name: int(value) for name, value in line.items()}) for line in lines]


def folder_of(project: str, day: str) -> str:
    """Return the folder of a project's day, in the form that Hive, Spark and DuckDB read."""
    return f"project={quote(project, safe='')}/dt={day}"


def project_of(path: str) -> str:
    return unquote(path.split("/")[0].removeprefix("project="))


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
