"""Compares what was acknowledged to publishers with what subscribers got. Each finding names a message."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from operator import attrgetter

from tests.chaos.ledger import Delivery, Ledger, Published, by_message
from tests.chaos.world import MAX_ATTEMPTS, MORGUE, Contract

#: Findings of one kind that are shown; the rest is counted.
SHOWN = 5


@dataclass
class Findings:
    """What is wrong, by kind, and figures of the run."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, text: str) -> None:
        self.wrong[kind].append(text)

    def lines(self) -> Iterator[str]:
        for kind, texts in self.wrong.items():
            yield f"{kind}: {len(texts)}"
            yield from (f"    {text}" for text in texts[:SHOWN])


def missing(ledger: Ledger, contracts: Iterable[Contract]) -> list[tuple[str, Published]]:
    """Return the owed messages without an acknowledgement, each with its subscription.

    A message that is refused on purpose is owed to whoever gets its dead letter.
    """
    acked = {
        (it.subscription, it.message_id) for it in list(ledger.deliveries) if it.acked is not None or it.seems_acked
    }
    letters = {it.tag for it in list(ledger.deliveries) if it.subscription == MORGUE and it.acked is not None}
    return [
        (contract.name, message)
        for contract in contracts
        for message in list(ledger.published)
        if contract.owes(message)
        and (contract.name, message.message_id) not in acked
        and not (contract.dead_letters(message) and message.tag in letters)
    ]


def check(findings: Findings, ledger: Ledger, contracts: Iterable[Contract], *, longest_wait: float) -> None:
    """Find everything that the records of a storm show to be wrong."""
    contracts = list(contracts)
    by_subscription = ledger.by_subscription()
    published = {message.message_id: message for message in ledger.published}
    for name, message in missing(ledger, contracts):
        findings.add("lost", f"{describe(ledger, message)} was never acknowledged by {name}")
    for contract in contracts:
        deliveries = by_subscription[contract.name]
        findings.figures["deliveries"] += len(deliveries)
        _check_duplicates(findings, ledger, contract, deliveries, published)
        if contract.is_healthy:
            _check_waits(findings, ledger, contract, deliveries, published, longest=longest_wait)
        if contract.is_ordered:
            _check_order(findings, ledger, contract, deliveries)
        if contract.is_exactly_once:
            _check_once(findings, ledger, contract, deliveries)
        if "deadLetterPolicy" in contract.body:
            _check_attempts(findings, ledger, contract, deliveries, published)
        _check_replays(findings, ledger, contract, deliveries)
    for outrage in ledger.outrages:
        findings.add("outrage", outrage)
    findings.figures["published"] = len(ledger.published)


def describe(ledger: Ledger, message: Published) -> str:
    """Return a message with the faults that could be felt since its publish."""
    faults = [
        f"{incident.fault} {incident.target}"
        for incident in ledger.incidents
        if incident.began - 1 <= message.answered <= incident.until
    ]
    key = f" with key {message.key}" if message.key else ""
    during = f" during {', '.join(faults)}" if faults else ""
    return f"{message.message_id} (published at {ledger.moment(message.answered)} by {message.publisher}{key}{during})"


def _check_duplicates(
    findings: Findings, ledger: Ledger, contract: Contract, deliveries: list[Delivery], published: dict[str, Published]
) -> None:
    """Count the deliveries after an ack, and find those that neither a fault nor a late answer explains.

    With exactly-once delivery an ack that was not confirmed explains them, too.
    A puller of an ordered subscription gets the messages after one that it refuses again, whether it acked them or not.
    """
    for message_id, group in by_message(deliveries):
        taken = (delivery for delivery in group if delivery.certain or not contract.is_exactly_once)
        acked = [delivery.acked for delivery in taken if delivery.acked is not None]
        again = [delivery for delivery in group if acked and delivery.at > min(acked)]
        findings.figures["duplicates"] += len(again)
        if contract.is_ordered and not contract.is_push:
            continue
        for delivery in again:
            sought = any(group[0].at <= seek + 1 and seek <= delivery.at for seek in contract.seeks)
            if sought or ledger.explained(group[0].at, delivery.at):
                continue
            if (contract.name, message_id) in ledger.missed_deadlines:
                findings.figures["again after a missed deadline alone"] += 1
            else:
                message = published.get(message_id)
                text = describe(ledger, message) if message else message_id
                findings.add(
                    "unexplained duplicate",
                    f"{text} came again {delivery.at - min(acked):.2f} s after its ack to {contract.name}",
                )


def _check_waits(
    findings: Findings,
    ledger: Ledger,
    contract: Contract,
    deliveries: list[Delivery],
    published: dict[str, Published],
    *,
    longest: float,
) -> None:
    """Find deliveries that waited too long at a healthy endpoint although there was no fault."""
    for message_id, group in by_message(deliveries):
        message = published.get(message_id)
        if message is None or not contract.owes(message):
            continue
        wait = group[0].at - message.answered
        if not ledger.explained(message.began, group[0].at):
            findings.figures["longest wait in ms"] = max(findings.figures["longest wait in ms"], int(wait * 1000))
            if wait > longest:
                findings.add("late", f"{describe(ledger, message)} waited {wait:.1f} s for {contract.name}")


def _check_order(findings: Findings, ledger: Ledger, contract: Contract, deliveries: list[Delivery]) -> None:
    """Find messages of a key that came before an earlier one.

    For push, the earlier one must have been acknowledged. For pull, an answer that got lost may hide the earlier one;
    then the later one has to come again after it.
    """
    groups = dict(by_message(deliveries))
    keys: dict[str, list[Published]] = defaultdict(list)
    for message in ledger.published:
        if message.key and contract.owes(message):
            keys[message.key].append(message)
    for messages in keys.values():
        for earlier, later in _ordered_pairs(messages):
            before, after = groups.get(earlier.message_id), groups.get(later.message_id)
            if not before or not after:
                continue  # it is lost, and reported as such
            findings.figures["ordered pairs"] += 1
            if _is_in_order(ledger, contract, before, after):
                continue
            findings.add(
                "inverted",
                f"{describe(ledger, later)} came to {contract.name} at {ledger.moment(after[0].at)}, but "
                f"{earlier.message_id} at {ledger.moment(before[0].at)}, acked at {ledger.moment(_ack_of(before))}",
            )


def _ordered_pairs(messages: Sequence[Published]) -> Iterator[tuple[Published, Published]]:
    """Yield messages of a key of which the first comes before the second: it was answered before that began."""
    publishers: dict[str, list[Published]] = defaultdict(list)
    for message in messages:
        publishers[message.publisher].append(message)
    for own in publishers.values():
        yield from pairwise(own)
    for own, others in permutations(publishers.values(), 2):
        for later in own:
            place = bisect_left(others, later.began, key=attrgetter("answered"))
            if place:
                yield others[place - 1], later


def _is_in_order(ledger: Ledger, contract: Contract, before: list[Delivery], after: list[Delivery]) -> bool:
    if contract.is_push:
        return after[0].at >= _ack_of(before)
    if after[0].at >= before[0].at:
        return True
    hidden = any(
        name == contract.name and began <= after[0].at and after[0].at - 60 <= ended
        for name, began, ended in ledger.failed_pulls
    ) or ledger.explained(after[0].at - 30, after[0].at)
    return hidden and after[-1].at >= before[0].at


def _ack_of(deliveries: list[Delivery]) -> float:
    return min((delivery.acked for delivery in deliveries if delivery.acked is not None), default=float("inf"))


def _check_replays(findings: Findings, ledger: Ledger, contract: Contract, deliveries: list[Delivery]) -> None:
    """Find messages that a seek to the past did not bring again. A wrong clock stamps messages with another time."""
    clocks = [it for it in ledger.incidents if it.fault == "clock"]
    groups = dict(by_message(deliveries)) if contract.replays else {}
    for message in ledger.published if contract.replays else ():
        sought = contract.replayed(message)
        if sought is None or any(it.began - 1 <= message.answered and message.began <= it.until for it in clocks):
            continue
        findings.figures["messages sought"] += 1
        if not any(it.at >= sought and it.acked is not None for it in groups.get(message.message_id, [])):
            findings.add(
                "not replayed", f"{describe(ledger, message)} did not come again after {ledger.moment(sought)}"
            )


def _check_once(findings: Findings, ledger: Ledger, contract: Contract, deliveries: list[Delivery]) -> None:
    """Find messages that came again after the server had confirmed their ack."""
    for message_id, group in by_message(deliveries):
        confirmed = min((it.acked for it in group if it.certain and it.acked is not None), default=float("inf"))
        again = [delivery.at for delivery in group if delivery.at > confirmed]
        if again:
            findings.add(
                "repeated",
                f"{message_id} came to {contract.name} at {ledger.moment(again[0])}, although its ack was confirmed at "
                f"{ledger.moment(confirmed)}",
            )


def _check_attempts(
    findings: Findings, ledger: Ledger, contract: Contract, deliveries: list[Delivery], published: dict[str, Published]
) -> None:
    """Find messages that were dead-lettered wrongly, too early or too late."""
    for message_id, group in by_message(deliveries):
        message = published.get(message_id)
        if message is None or not message.attributes.get("poison"):
            continue
        attempts = {delivery.attempt for delivery in group}
        if max(attempts) > MAX_ATTEMPTS:
            findings.add("attempts", f"{describe(ledger, message)} had attempt {max(attempts)} at {contract.name}")
        elif len(attempts) < MAX_ATTEMPTS and not ledger.explained(group[0].at, group[-1].at + 30):
            findings.add("attempts", f"{describe(ledger, message)} had only attempts {sorted(attempts)}")
