"""What is still there after a storm and must not be: tokens, leases, keys, descriptors, files, tracebacks."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import requests
from pyarrow.dataset import dataset

from tests.ports import wait_for

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: How long the counters may take to reach Redis.
COUNTERS_SECONDS = 30.0
KEYS_SECONDS = 60.0
PUSHED, ACKED = COMPARED = ("subscription_push_request_count", "subscription_ack_message_count")
SAMPLE = re.compile(r"^pushhub_(\w+)\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


def held() -> list[str]:
    """Describe the deliveries in the database, and the tokens and leases in Redis."""
    from django.db import Error, close_old_connections
    from redis import RedisError

    from deliveries.backlog.default import default_backlog
    from deliveries.models import Delivery

    backlog = default_backlog()
    try:
        texts = []
        if count := Delivery.objects.count():
            texts.append(f"{count} deliveries in the database")
        for lane in backlog.lanes():
            state = backlog.states([lane])[0]
            if state is not None and state.outstanding:
                texts.append(f"{state.outstanding} tokens of lane {lane.key}")
            if places := backlog.client.hlen(lane.places_key):
                texts.append(f"{places} places of lane {lane.key}")
        return texts
    except (Error, RedisError) as error:
        close_old_connections()
        return [f"not known yet: {error!r}"]


def dump_redis(storm: Storm) -> None:
    """Write what Redis has to the folder of the storm: a delivery hangs, and nobody knows why."""
    client = storm.redis()
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"set": client.smembers,
        b"string": client.get,
    }
    with (storm.folder / "redis.txt").open("w") as file:
        for key in sorted(client.scan_iter()):
            file.write(f"{key.decode()}\t{readers[client.type(key)](key)}\n")


def counters(storm: Storm) -> Counter[tuple[str, str]]:
    """Return the counters of `/metrics` that are compared, by name and subscription."""
    answer = requests.get(f"http://{storm.stand.web['a']}/metrics", timeout=30)
    answer.raise_for_status()
    values: Counter[tuple[str, str]] = Counter()
    for name, labels, value in SAMPLE.findall(answer.text):
        if name not in COMPARED:
            continue
        its = dict(LABEL.findall(labels))
        if its.get("response_class", "ack") == "ack" and its.get("delivery_type") != "filter":
            values[name, its.get("subscription", "")] += round(float(value))
    return values


def settled_counters(storm: Storm) -> Counter[tuple[str, str]]:
    """Return the counters once they no longer change: processes add theirs up for a while."""
    give_up = time.monotonic() + COUNTERS_SECONDS
    before, values = None, counters(storm)
    while before != values and time.monotonic() < give_up:
        time.sleep(2)
        before, values = values, counters(storm)
    return values


def check_counters(storm: Storm, before: Mapping[tuple[str, str], int]) -> None:
    """Compare what was counted since the calm began with what subscribers got."""
    expected: Counter[tuple[str, str]] = Counter()
    for name, deliveries in storm.ledger.by_subscription().items():
        acks = sum(1 for it in deliveries if it.at >= storm.ledger.calm_since and it.acked is not None)
        if storm.world.contracts[name].is_push:
            expected[PUSHED, name] = acks
        expected[ACKED, name] = acks
    give_up = time.monotonic() + COUNTERS_SECONDS
    wrong = ["not compared"]
    while wrong and time.monotonic() < give_up:
        values = counters(storm)
        wrong = [
            f"{' of '.join(key)} grew by {values[key] - before.get(key, 0)} and not by {count}"
            for key, count in expected.items()
            if values[key] - before.get(key, 0) != count
        ]
        time.sleep(0.25)
    for text in wrong:
        storm.findings.add("metrics", text)


def check_keys(storm: Storm) -> None:
    """Delete everything, and look at what is left in Redis."""
    for contract in storm.world.contracts.values():
        storm.world.caller.until_done("DELETE", contract.path, accept=(200, 404))
    with suppress(AssertionError):
        wait_for(lambda: not keys_left(storm), timeout_seconds=KEYS_SECONDS)
    for key in keys_left(storm):
        storm.findings.add("key", f"Redis has {key!r}")


def check_stop(storm: Storm) -> None:
    """Stop all processes warmly, and look at their ends."""
    for member in storm.stand.members.values():
        member.terminate()
    for member in storm.stand.members.values():
        status = member.wait()
        if status:
            storm.findings.add("end", f"{member.name} ended with {status}")
    for key in storm.redis().scan_iter(b"ph:work:*"):
        storm.findings.add("key", f"Redis has {key!r} although every worker has ended")


def missed_deadlines(storm: Storm) -> set[tuple[str, str]]:
    """Return the subscription and message of each push whose answer came too late, from the journal."""
    rows = dataset(storm.folder / "data" / "segments" / "sealed", format="parquet").to_table(
        columns=["subscription", "message_id"], filter=pc.field("reason") == "deadline_exceeded"
    )
    return {(row["subscription"].rpartition("/")[2], str(row["message_id"])) for row in rows.to_pylist()}


def keys_left(storm: Storm) -> list[bytes]:
    """Return the keys of lanes and messages."""
    lasting = (b"ph:work:", b"ph:bell:", b"ph:lease:")
    return [key for key in storm.redis().scan_iter(b"ph:*:*") if not key.startswith(lasting)]


def check_logs(storm: Storm) -> None:
    """Find the tracebacks in all logs, and the files that were to be moved or removed."""
    for log in sorted((storm.folder / "logs").iterdir()):
        text = log.read_text(errors="replace")
        for end in re.finditer(r"^(Traceback .*\n(?:[ \t]+.*\n|\n)*)(.*)$", text, re.MULTILINE):
            storm.findings.add("traceback", f"{log.name}: {end[2][:300]}")
    for path in sorted(Path(storm.folder / "data").rglob("*")):
        if path.name.endswith((".tmp", ".partial")):
            storm.findings.add("file", str(path))
