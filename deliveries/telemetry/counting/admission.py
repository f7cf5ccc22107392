"""The folder `admitted/` of links to segments that Spark may read.

Spark's file source stops at the first truncated file, or drops it silently. So the stream reads links to segments that
were checked, and not the sealed segments themselves. A link is removed when its segment is in the ledger and Spark has
gone on, so the folder stays small however long segments are kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from deliveries.telemetry.counting.segments import Segments

ADMITTED = "admitted"


class Admission(Segments):
    """Links new segments. The rollup's lock makes sure that a folder has one admission."""

    def __init__(self, folder: Path, *, job: str) -> None:
        super().__init__(folder, job=job)
        self._admitted = folder / ADMITTED
        self._admitted.mkdir(parents=True, exist_ok=True)

    def admit_new(self) -> int:
        """Link the new segments that can be read; return how many."""
        paths = self.new()
        for path in paths:
            self._link(path)
        return len(paths)

    def put_aside(self, name: str, *, reason: str) -> None:
        super().put_aside(name, reason=reason)
        self.unlink([name])

    def link_path(self, name: str) -> Path:
        return self._admitted / name

    def links(self) -> set[str]:
        return {path.name for path in self._admitted.iterdir() if not path.name.startswith(".")}

    def unlink(self, names: Iterable[str]) -> None:
        for name in names:
            (self._admitted / name).unlink(missing_ok=True)

    def _link(self, path: Path) -> None:
        hidden = self._admitted / f".{path.name}"
        hidden.unlink(missing_ok=True)
        try:
            os.link(path, hidden)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, hidden)
        hidden.rename(self._admitted / path.name)
