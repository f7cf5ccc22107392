"""A storm: publishers, subscribers and faults for some minutes, then calm, and then the checks."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import psycopg
import redis

from tests.chaos import remains
from tests.chaos.checker import Findings, check, missing
from tests.chaos.endpoints import Endpoint
from tests.chaos.ledger import Incident, Ledger, now
from tests.chaos.plan import SLOT_SECONDS, Event, kinds_for, plan
from tests.chaos.publishers import PROJECT, ClientPublisher, Publisher, RestPublisher
from tests.chaos.samples import LEFT, Sample, growing, measure
from tests.chaos.stand import MEMBERS, Stand
from tests.chaos.world import BULK, DOOMED, GUEST_RATE, MAX_OUTSTANDING, ORDERS, World

PROGRESS_SECONDS = 5.0
WATCH_SECONDS = 0.5
SAMPLE_SECONDS = 2.0
#: A longer storm has no more samples than this.
MOST_SAMPLES = 360
#: The calm that is measured at the end.
CALM_SECONDS = 6.0
FAULT_SECONDS = 300.0
#: The ordering keys of each of the two publishers of the bulk, and the messages of a request, which are of one key.
BULK_KEYS, BULK_BATCH = 50, 50
#: The default, as two hundred messages of few keys at a time would not keep up.
BULK_SETTINGS = {"PUSHHUB_BACKLOG_LIMIT": "4000"}


@dataclass(frozen=True)
class Options:
    """What is asked for: everything that is random follows from the seed."""

    seed: int
    minutes: float
    database: str
    load: float
    #: Messages a second to a topic of their own, for a plain and an ordered subscription.
    bulk: float = 0.0
    bugs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    #: Kinds of findings that don't make the run fail.
    ignored: tuple[str, ...] = ()
    #: How long a delivery to a healthy endpoint may wait where there is no fault.
    longest_wait: float = 5.0
    #: How long nothing may arrive once the faults are over, although something is owed.
    drain_seconds: float = 120.0
    #: Seconds between two faults.
    every: float = SLOT_SECONDS
    is_monitored: bool = False
    cells: int = 1
    #: Where samples and faults are written while the storm goes on.
    trace: Path | None = None


class Storm:
    """One run in a folder, which keeps the logs of all processes."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.ledger = Ledger()
        self.findings = Findings()
        self.samples: list[Sample] = []
        #: Choices that faults make while they are done.
        self.dice = random.Random(f"faults {options.seed}")
        self.moves = 0
        self._began = now()
        self._locks: dict[str, threading.RLock] = defaultdict(threading.RLock)

    def run(self) -> Findings:
        options = self.options
        self.ledger.began = self._began
        with Stand(
            self.folder,
            options.database,
            bugs=options.bugs,
            is_monitored=options.is_monitored,
            cells=options.cells,
            settings=BULK_SETTINGS if options.bulk else {},
        ) as self.stand:
            self._log_to_file()
            addresses = list(self.stand.web.values())
            kinds = kinds_for(
                options.database,
                has_small_disk=self.stand.has_small_disk,
                without=options.without,
                only=options.only,
            )
            events = plan(
                options.seed,
                seconds=options.minutes * 60,
                kinds=kinds,
                database=options.database,
                every=options.every,
            )
            if not self.stand.has_small_disk:
                self.say("no file system can be mounted here: the disk will not be full")
            world = World(self.ledger, seed=options.seed, load=options.load, bulk=options.bulk, addresses=addresses)
            with self._watching(), world as self.world:
                self._rage(events, self._publishers(addresses))
                self._calm_down()
                if self._drains():
                    self._calm(self._publishers(addresses))
                    self.say("the counters are compared")
                    remains.check_keys(self)
                    self.say("everything is deleted")
            remains.check_stop(self)
            self.say("every process has ended")
        self.ledger.missed_deadlines = remains.missed_deadlines(self)
        check(self.findings, self.ledger, self.world.contracts.values(), longest_wait=options.longest_wait)
        remains.check_logs(self)
        left = max((it.rows.get(LEFT, 0) for it in self.samples), default=0)
        self.findings.figures[f"most {LEFT}"] = left
        for text in growing(self.samples):
            self.findings.add("growing", text)
        for kind in options.ignored:
            self.findings.figures[f"ignored: {kind}"] = len(self.findings.wrong.pop(kind, []))
        return self.findings

    def say(self, text: str) -> None:
        print(f"{now() - self._began:7.1f} s  {text}", flush=True)

    def _trace(self, record: Sample | Incident) -> None:
        if self.options.trace is not None:
            with self.options.trace.open("ab") as file:
                file.write(orjson.dumps({"what": type(record).__name__, **asdict(record)}) + b"\n")

    def _log_to_file(self) -> None:
        """Keep the logs of this process, in which Google's clients tell of every call that a fault breaks."""
        handler = logging.FileHandler(self.folder / "storm.log")
        for name in ("", "google"):
            logging.getLogger(name).handlers = [handler]

    def redis(self) -> redis.Redis:
        """Return a client that does not claim Redis. PushHub's do, which fails while Redis is full."""
        return redis.Redis.from_url(self.stand.redis.url, socket_timeout=30)

    @contextmanager
    def postgresql(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield a connection of its own. PostgreSQL may still be starting."""
        assert self.stand.postgresql is not None
        with psycopg.connect(
            host=str(self.stand.postgresql.folder), user="pushhub", dbname="postgres", autocommit=True
        ) as connection:
            yield connection

    def subscription_state(self, name: str) -> tuple[bool, bool]:
        """Return whether a subscription is paused, and whether it has an endpoint."""
        from django.db import connection

        from subscriptions.models import Subscription

        try:
            row = Subscription.objects.get(subscription_id=name)
            return row.paused, bool(row.push_endpoint)
        finally:
            connection.close()

    @staticmethod
    def token_refusals(name: str) -> int:
        """Return how many messages were last not pushed because the subscription's account gets no token."""
        from django.db import Error, connection

        from deliveries.models import Delivery

        rows = Delivery.objects.filter(subscription__subscription_id=name, last_result="token_denied")
        try:
            return rows.count()
        except Error:
            return 0
        finally:
            connection.close()

    @staticmethod
    def topic_path(name: str) -> str:
        return f"/v1/{PROJECT}/topics/{name}"

    def _publishers(self, addresses: Sequence[str]) -> list[Publisher]:
        load, seed = self.options.load, self.options.seed
        rest: dict[str, Any] = {"addresses": addresses, "seed": seed, "topic": ORDERS}
        bulk = {**rest, "topic": BULK, "keys": BULK_KEYS, "batch": BULK_BATCH, "rate": self.options.bulk / 2}
        bulks = [RestPublisher(f"bulk-{name}", self.ledger, first=first, **bulk) for first, name in enumerate("ab")]
        return [
            *(bulks if self.options.bulk else []),
            RestPublisher("batches", self.ledger, first=0, rate=load * 0.3, **rest),
            RestPublisher("shared-a", self.ledger, first=0, rate=load * 0.05, shared=["shared"], **rest),
            RestPublisher("shared-b", self.ledger, first=1, rate=load * 0.05, shared=["shared"], **rest),
            RestPublisher("singles-a", self.ledger, first=0, rate=load * 0.2, keys=4, **rest),
            RestPublisher("singles-b", self.ledger, first=1, rate=load * 0.1, keys=4, **rest),
            RestPublisher("doomed", self.ledger, first=1, rate=2, **rest | {"topic": DOOMED}),
            RestPublisher("guest", self.ledger, first=0, rate=GUEST_RATE, **rest, token=self.world.guest),
            ClientPublisher("client", self.ledger, topic=ORDERS, rate=load * 0.3, seed=seed, keys=4),
        ]

    def _rage(self, events: Sequence[Event], publishers: Sequence[Publisher]) -> None:
        """Publish while the faults of the plan are done."""
        self.say(f"the plan of seed {self.options.seed}, from now on:")
        for event in events:
            print(f"            {event}")
        began = now()
        # Ctrl-C doesn't wait for the faults that are to come.
        acts = [threading.Thread(target=self._do, args=(event, began), daemon=True) for event in events]
        for act in acts:
            act.start()
        self._publish(publishers, seconds=self.options.minutes * 60)
        for act in acts:
            act.join(timeout=FAULT_SECONDS)
            assert not act.is_alive(), "a fault did not end"

    def _publish(self, publishers: Sequence[Publisher], *, seconds: float) -> None:
        for publisher in publishers:
            publisher.start()
        try:
            time.sleep(seconds)
        finally:
            # A storm that is interrupted ends once its threads have.
            for publisher in publishers:
                publisher.stop()
        for publisher in publishers:
            publisher.join()

    def _calm_down(self) -> None:
        self.world.calm.set()
        dead = self.world.contracts["dead"]
        self.world.modify_push_config(dead, self.world.push_config(dead, path="/alive"))
        self.say("the faults are over; every endpoint acks")

    def _do(self, event: Event, began: float) -> None:
        """Do a fault of the plan when its time has come and what it hits is not hit by another one."""
        time.sleep(max(began + event.at - now(), 0))
        name = f"{event.kind.name} {event.target}"
        at = now()
        try:
            with self._lock_of(event), event.kind.act(self, event.target) as evidence:
                self.say(f"{name}: {evidence}")
                time.sleep(event.seconds)
        except Exception as error:
            self.findings.add("fault without effect", f"{name}: {error!r}")
            self.say(f"{name} FAILED: {error!r}")
            return
        ended = now()
        self.say(f"{name} is over")
        incident = Incident(event.kind.name, event.target, at, ended, ended + event.kind.felt_seconds, evidence)
        self.ledger.incidents.append(incident)
        self._trace(incident)

    @contextmanager
    def _lock_of(self, event: Event) -> Iterator[None]:
        """Have one fault at a time for each target, and none beside one that hits all."""
        with contextlib.ExitStack() as stack:
            for name in sorted({*MEMBERS}) if event.target == "all" else [event.target]:
                stack.enter_context(self._locks[name])
            yield

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Show how far the storm is, and start processes again that end although no fault ended them."""
        stop = threading.Event()
        seconds = max(SAMPLE_SECONDS, self.options.minutes * 60 / MOST_SAMPLES)

        def watch() -> None:
            shown = measured = now()
            while not stop.wait(WATCH_SECONDS):
                if now() > measured + seconds:
                    self.samples.append(measure(self))
                    self._trace(self.samples[-1])
                    measured = now()
                for name, status in self.stand.supervise():
                    self.findings.add("ended", f"{name} ended by itself with {status} at {self.ledger.moment(now())}")
                    self.say(f"{name} ended by itself with {status}, and is started again")
                if now() > shown + PROGRESS_SECONDS:
                    self.say(self._state())
                    shown = now()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _state(self) -> str:
        failed = sum(self.ledger.failed_publishes.values())
        return f"{len(self.ledger.published)} published, {failed} refused, {len(self.ledger.deliveries)} deliveries"

    def _drains(self) -> bool:
        """Wait until everything has arrived, the database owes nothing, and Redis holds no token and no lease.

        The endpoint that takes two requests at a time may need long, so only a standstill fails.
        """
        began = shown = progressed = now()
        fewest = float("inf")
        while now() < progressed + self.options.drain_seconds:
            looked = now()
            left = missing(self.ledger, self.world.contracts.values())
            held = remains.held()
            if len(left) < fewest:
                fewest, progressed = len(left), now()
            if not left and not held:
                self.say(f"everything arrived in {now() - began:.1f} s: {self._state()}")
                return True
            if now() > shown + PROGRESS_SECONDS:
                counts = Counter(name for name, _ in left)
                self.say(f"{len(left)} acks are missing {dict(counts.most_common(3))}; {'; '.join(held[:2])}")
                shown = now()
            # After an hour a look takes a second, in which the endpoints of this process get little time.
            time.sleep(min(max(0.25, 10 * (now() - looked)), self.options.drain_seconds / 4))
        for text in held:
            self.findings.add("left", text)
        with contextlib.suppress(redis.RedisError):
            remains.dump_redis(self)
        return False

    def _calm(self, publishers: Sequence[Publisher]) -> None:
        """Publish without faults. What happens from now on, no fault explains, and every figure has to be right."""
        before = remains.settled_counters(self)
        for endpoint in self.world.endpoints():
            endpoint.receiver.most_outstanding = 0
        self.ledger.calm_since = now()
        self.say("calm")
        self._publish(publishers, seconds=CALM_SECONDS)
        self._drains()
        remains.check_counters(self, before)
        limited = self.world.contracts["limited"].endpoint
        assert isinstance(limited, Endpoint)
        # A request whose answer has been read may still count when the next one comes.
        if limited.receiver.most_outstanding > 2 * MAX_OUTSTANDING:
            self.findings.add("limit", f"{limited.receiver.most_outstanding} requests at once, over {MAX_OUTSTANDING}")
