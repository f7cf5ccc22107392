"""What publishers and subscribers of a storm saw. All times are time.monotonic() of the process that runs the storm."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class Published:
    """A message whose publish was answered with its id. Others may exist, and nothing is owed for them."""

    message_id: str
    topic: str
    key: str
    attributes: Mapping[str, str]
    publisher: str
    #: The message's data, by which its dead letter is recognized.
    tag: str
    began: float
    answered: float


@dataclass(slots=True)
class Delivery:
    """A message as a subscriber got it. `acked` is when the subscriber acknowledged it, or None.

    It `seems_acked` if its answer was a 102 before another status: PushHub waits for that only so long.
    An acknowledgement is `certain` if PushHub confirmed it, which happens for pulled messages only.
    """

    subscription: str
    message_id: str
    at: float
    attempt: int = 0
    acked: float | None = None
    certain: bool = False
    seems_acked: bool = False
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault that was done: when it began and ended, what it hit, and until when its effects may be felt."""

    fault: str
    target: str
    began: float
    ended: float
    until: float
    evidence: str


@dataclass
class Ledger:
    """Everything that a checker needs. Threads append to the lists, which is atomic."""

    published: list[Published] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    #: Pulls whose answer was lost or refused: subscription, begin, end.
    failed_pulls: list[tuple[str, float, float]] = field(default_factory=list)
    #: Publishes without an answer with ids, by publisher.
    failed_publishes: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: What a publisher or subscriber saw that must never be, such as a push without a valid token.
    outrages: list[str] = field(default_factory=list)
    #: Pushes whose answer came too late for PushHub: subscription, message. Endpoints share the cores with a storm.
    missed_deadlines: set[tuple[str, str]] = field(default_factory=set)
    #: From here on, no fault is felt any more.
    calm_since: float = float("inf")
    #: What the times in texts count from.
    began: float = 0.0

    def moment(self, at: float) -> str:
        return f"{at - self.began:.2f} s"

    def dump(self, path: Path) -> None:
        """Write every record as a line of JSON, in order of time, for whoever looks for the cause of a finding."""
        records = [
            *((it.answered, "published", asdict(it)) for it in self.published),
            *((it.at, "delivered", asdict(it)) for it in self.deliveries),
            *((it.began, "fault", asdict(it)) for it in self.incidents),
        ]
        with path.open("wb") as file:
            for at, kind, fields in sorted(records, key=itemgetter(0)):
                file.write(orjson.dumps({"at": round(at - self.began, 3), "what": kind, **fields}) + b"\n")

    def by_subscription(self) -> dict[str, list[Delivery]]:
        groups: dict[str, list[Delivery]] = defaultdict(list)
        for delivery in list(self.deliveries):
            groups[delivery.subscription].append(delivery)
        return groups

    def explained(self, began: float, ended: float) -> bool:
        """Return whether a fault could be felt at any time between `began` and `ended`."""
        if began >= self.calm_since:
            return False
        return any(incident.began <= ended and began <= incident.until for incident in list(self.incidents))


def now() -> float:
    """Return the time of all records."""
    return time.monotonic()


def by_message(deliveries: list[Delivery]) -> Iterator[tuple[str, list[Delivery]]]:
    """Yield each message with its deliveries in order of arrival."""
    groups: dict[str, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        groups[delivery.message_id].append(delivery)
    for message_id, group in groups.items():
        yield message_id, sorted(group, key=lambda delivery: delivery.at)
