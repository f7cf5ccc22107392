"""Prometheus' text format, version 0.0.4.

prometheus_client would name each counter `..._total`; PushHub's names follow Cloud Monitoring's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deliveries.telemetry.kinds import Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Labels = Mapping[str, str]


@dataclass(slots=True)
class Family:
    """A metric with all its series."""

    kind: Kind
    lines: list[str] = field(default_factory=list)

    def add(self, labels: Labels, value: float, *, suffix: str = "") -> None:
        pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        braces = f"{{{pairs}}}" if pairs else ""
        self.lines.append(f"{self.kind.exported}{suffix}{braces} {_number(value)}")

    def add_histogram(self, labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
        """Add the series of one histogram; `counts` has one more bucket than `bounds`, without an upper bound."""
        count = 0
        for bound, bucket in zip([*map(_number, bounds), "+Inf"], counts, strict=True):
            count += bucket
            self.add({**labels, "le": bound}, count, suffix="_bucket")
        self.add(labels, total, suffix="_sum")
        self.add(labels, count, suffix="_count")


def format_text(families: Iterable[Family]) -> str:
    lines: list[str] = []
    for family in families:
        name, kind = family.kind.exported, family.kind
        lines += [f"# HELP {name} {kind.help}", f"# TYPE {name} {kind.exported_type}", *family.lines]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
