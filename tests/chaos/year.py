"""A year in about an hour: everything that `make up` starts, and a clock that jumps by half a day again and again.

    python -m tests.chaos.year --days 365 --hours 12

`shifted.c`, loaded into all processes and Redis before their libraries, moves the time of day and nothing that measures
durations. So each step is a machine that was suspended, and all of them together what only time brings about: keys are
replaced, retentions and snapshots end, unused subscriptions expire, counts move from minutes to hours and days.
"""

from __future__ import annotations

import argparse
import base64
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jwt
import requests

from tests.chaos.inside import clock_set
from tests.endtoend.running import Running, environment, running
from tests.ports import wait_for
from tests.receiver import Receiver, Request

PUSHED = ("plain", "ordered")
#: Days for which the subscription that nobody pulls keeps messages, and after which an unused one is deleted.
KEPT_DAYS, UNUSED_DAYS = 3, 31
#: Days after which a signing key is replaced.
KEY_DAYS = 30
AUDIENCE, EMAIL = "year", "pusher@demo.iam.gserviceaccount.com"
#: How often progress is shown, in days.
SHOWN_DAYS = 30


@dataclass
class Year:
    """What is published and received. The time is `ahead` by so many seconds."""

    folder: Path
    ahead: float = 0
    received: set[tuple[str, str]] = field(default_factory=set)
    key_ids: set[str] = field(default_factory=set)
    refused: int = 0
    published: int = 0
    keys: dict[str, Any] = field(default_factory=dict)
    pushhub: Running | None = None

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        assert self.pushhub is not None
        answer = requests.request(method, f"{self.pushhub.api}/{path}", json=body, timeout=120)
        answer.raise_for_status()
        return answer.json()

    def now(self) -> float:
        return time.time() + self.ahead

    def answer(self, request: Request) -> int:
        """Acknowledge a push whose token is valid at this time."""
        token = request.headers["authorization"].removeprefix("Bearer ")
        key_id = jwt.get_unverified_header(token)["kid"]
        if key_id not in self.keys:
            self.keys = {key["kid"]: jwt.PyJWK(key).key for key in self.call("GET", "oauth2/v3/certs")["keys"]}
        options = {"verify_exp": False, "verify_iat": False}
        claims = jwt.decode(token, self.keys[key_id], algorithms=["RS256"], audience=AUDIENCE, options=options)
        if not claims["iat"] <= self.now() < claims["exp"]:
            self.refused += 1
            return 401
        self.key_ids.add(key_id)
        self.received.add((request.path.rpartition("/")[2], base64.b64decode(request.json["message"]["data"]).decode()))
        return 204

    def create(self, endpoint: str) -> None:
        """Create two subscriptions that are pushed, one that is pulled, one without a policy, and one without use."""
        self.call("POST", "v1/projects/demo/serviceAccounts", {"accountId": "pusher"})
        self.call("PUT", "v1/projects/demo/topics/orders", {"messageRetentionDuration": "86400s"})
        token = {"serviceAccountEmail": EMAIL, "audience": AUDIENCE}
        subscriptions: dict[str, dict[str, Any]] = {
            name: {"pushConfig": {"pushEndpoint": f"{endpoint}/{name}", "oidcToken": token}} for name in PUSHED
        }
        subscriptions["ordered"]["enableMessageOrdering"] = True
        subscriptions |= {
            "pulled": {},
            "kept": {"expirationPolicy": {}, "messageRetentionDuration": f"{KEPT_DAYS * 86400}s"},
            "unused": {},
        }
        for name, fields in subscriptions.items():
            fields["topic"] = "projects/demo/topics/orders"
            self.call("PUT", f"v1/projects/demo/subscriptions/{name}", fields)

    def take_step(self) -> None:
        """Publish two messages, and wait until all that take messages have them."""
        texts = [str(self.published + number) for number in range(2)]
        self.published += len(texts)
        messages = [{"data": base64.b64encode(text.encode()).decode(), "orderingKey": "key"} for text in texts]
        self.call("POST", "v1/projects/demo/topics/orders:publish", {"messages": messages})
        wait_for(lambda: self.received >= {(name, text) for name in PUSHED for text in texts}, what="the pushes")
        path, taken = "v1/projects/demo/subscriptions/pulled", 0
        while taken < len(texts):
            received = self.call("POST", f"{path}:pull", {"maxMessages": 100}).get("receivedMessages", [])
            taken += len(received)
            if received:
                self.call("POST", f"{path}:acknowledge", {"ackIds": [entry["ackId"] for entry in received]})

    def rows(self) -> dict[str, int]:
        """Return how many rows the larger tables have."""
        with closing(sqlite3.connect(self.folder / "data" / "pushhub.sqlite3", timeout=60)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            counts = {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}
        return {name: count for name, count in counts.items() if name.startswith("deliveries_") and count}

    def check(self, days: float, per_day: float) -> None:
        """Compare what is left with what the policies say. A day had so many messages. Raises AssertionError."""
        listed = self.call("GET", "v1/projects/demo/subscriptions")["subscriptions"]
        names = {row["name"].rpartition("/")[2] for row in listed}
        expected = {*PUSHED, "pulled", "kept"} | ({"unused"} if days < UNUSED_DAYS else set())
        assert names == expected, f"there are the subscriptions {names}"
        least = 1 + days // (KEY_DAYS + 4 / per_day)
        assert len(self.key_ids) >= least, f"only {len(self.key_ids)} keys have signed"
        most = (max(KEPT_DAYS, 7 if "unused" in names else 0) + 2) * per_day
        wait_for(lambda: self.rows()["deliveries_message"] <= most, what=f"at most {most:.0f} messages")
        assert self.pushhub is not None
        assert requests.get(f"{self.pushhub.api}/readyz", timeout=120).status_code == 200
        assert "Traceback" not in self.pushhub.printed()

    def say(self, step: int) -> None:
        size_mb = sum(path.stat().st_size for path in (self.folder / "data").rglob("*") if path.is_file()) / 1e6
        rows = ", ".join(f"{name.partition('_')[2]} {count}" for name, count in self.rows().items() if count > 100)
        moment = datetime.fromtimestamp(self.now(), UTC)
        print(
            f"{moment:%F}  step {step}: {self.published} published, {self.refused} pushes refused for their tokens, "
            f"{len(self.key_ids)} keys, {size_mb:.1f} MB; rows: {rows or 'few'}",
            flush=True,
        )


def live(folder: Path, *, days: float, hours: float) -> Year:
    """Live so many days in steps of hours, and check what is left of them. Raises AssertionError."""
    library = folder / "shifted.so"
    source = Path(__file__).with_name("shifted.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    clock = folder / "clock"
    clock_set(clock, 0)
    year = Year(folder)
    preloaded = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(clock)}
    settings = environment(folder / "data", PUSHHUB_JOURNAL="on", PUSHHUB_SPARK="off", **preloaded)
    with Receiver(year.answer, keeps=False) as receiver, running(settings) as year.pushhub:
        year.create(receiver.url)
        for step in range(int(days * 24 / hours)):
            year.ahead += int(hours * 3600)
            clock_set(clock, year.ahead)
            year.take_step()
            if step % max(int(SHOWN_DAYS * 24 / hours), 1) == 0:
                year.say(step)
        year.check(days, 2 * 24 / hours)
        year.say(step)
    return year


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.year", description=__doc__)
    parser.add_argument("--days", type=float, default=365)
    parser.add_argument("--hours", type=float, default=12, help="of each step")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pushhub-year-") as folder:
        live(Path(folder), days=given.days, hours=given.hours)
    print(f"{given.days:g} days, and everything as the policies say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
