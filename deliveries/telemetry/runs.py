"""Runs of the pipeline's programs, as the console and `/metrics` show them: each is a row of the database.

A run reports again and again that it still runs. One that is silent was killed, or its machine is gone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from django.db import close_old_connections, connections
from django.db.models import F, Max

from deliveries.models import CountingLease, PipelineRun
from deliveries.store.writelock import write_transaction
from pushhub.common.background import BackgroundThread
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import PushHubError, clipped
from pushhub.common.replica import subtract_age

logger = logging.getLogger(__name__)

Kind = PipelineRun.Kind
COUNTERS = (Kind.EMBEDDED, Kind.ROLLUP)
#: Runs that are kept of each kind.
KEPT = 1000
#: How often a run reports.
REPORT = timedelta(seconds=15)
#: A run without a report for this long has ended without saying so.
SILENT = timedelta(seconds=60)
#: The line of a trace that names a Python error.
PYTHON_ERROR = re.compile(r"(?!org\.|java\.|scala\.)[A-Za-z_][\w.]*(?:Error|Exception|DoesNotExist): ")


class Run:
    """One process' view of a run. It begins with the first report.

    `lag` returns how many seconds the work of a program that doesn't count is behind, or None.
    """

    def __init__(self, kind: str, *, lag: Callable[[], float | None] = lambda: None, clock: Clock = utcnow) -> None:
        self.job_id = ""
        self._kind = kind
        self._lag = lag
        self._clock = clock
        self._pk = 0
        self._new_rows = 0
        self._due: datetime | None = None

    def add(self, rows: int) -> None:
        """Note rows that were counted, written or published. The next report stores them."""
        self._new_rows += rows

    def report(self) -> None:
        """Store that the run goes on, at most once in REPORT. Workers that take turns share a run of the counter."""
        now = self._clock()
        if self._due is not None and now < self._due:
            return
        self._due = now + REPORT
        with write_transaction(durable=False):
            if not self._store(now):
                self._begin(now)

    def end(self, failure: str = "") -> None:
        """Store that the run is over, if it began or failed. An outage of the database only leaves it open."""
        self._due = None
        try:
            if self._pk or failure:
                self.report()
                PipelineRun.objects.filter(pk=self._pk).update(finished_at=self._clock(), failure=failure)
        except Exception:
            logger.warning("the end of a run is not recorded", exc_info=True)
        self._pk, self._due = 0, None

    def _store(self, now: datetime) -> int:
        rows = self._new_rows  # another thread may add some meanwhile
        stored = PipelineRun.objects.filter(pk=self._pk, finished_at=None).update(
            reported_at=now, job_id=self.job_id, rows=F("rows") + rows, lag_seconds=self._behind(now)
        )
        self._new_rows -= rows if stored else 0
        return stored

    def _begin(self, now: datetime) -> None:
        shared = PipelineRun.objects.filter(kind=Kind.EMBEDDED, finished_at=None, reported_at__gt=now - SILENT)
        other = shared.order_by("-pk").first() if self._kind == Kind.EMBEDDED else None
        self._pk = (other or PipelineRun.objects.create(kind=self._kind, started_at=now, reported_at=now)).pk
        self._store(now)
        kept = PipelineRun.objects.filter(kind=self._kind).order_by("-pk").values_list("pk", flat=True)
        for oldest in kept[KEPT - 1 : KEPT]:
            PipelineRun.objects.filter(kind=self._kind, pk__lt=oldest).delete()

    def _behind(self, now: datetime) -> int | None:
        if self._kind in COUNTERS:
            lease = CountingLease.objects.first()
            seconds = (now - lease.counted_to).total_seconds() if lease is not None else None
        else:
            seconds = self._lag()
        return None if seconds is None else max(int(seconds), 0)


@contextmanager
def running(kind: str, *, lag: Callable[[], float | None] = lambda: None, job_id: str = "") -> Iterator[Run]:
    """Store the run of the block: that it began, that it goes on, and how it ended."""
    run = Run(kind, lag=lag)
    run.job_id = job_id
    run.report()

    def keep_reporting() -> None:
        if reporter.stopping.wait(1.0):
            return
        try:
            run.report()
        except Exception as error:  # the next report says the same
            logger.debug("a run is reported later: %s", error)
            close_old_connections()

    reporter = BackgroundThread("run", keep_reporting, at_end=connections.close_all)
    reporter.start()
    failure = ""
    try:
        yield run
    except BaseException as error:
        failure = error_line(error)
        raise
    finally:
        reporter.stop(timeout=5.0)
        run.end(failure)


def error_line(error: BaseException) -> str:
    """Return one line about an error. Spark wraps an error of a task in the traces of two languages."""
    if isinstance(error, PushHubError):
        return error.message
    lines = [line for line in str(error).splitlines() if PYTHON_ERROR.match(line)]
    return clipped(lines[-1] if lines else f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": "))


def last_runs() -> dict[str, PipelineRun]:
    """Return the last run of each kind that has one."""
    newest = PipelineRun.objects.values("kind").annotate(newest=Max("pk")).values("newest")
    return {run.kind: run for run in PipelineRun.objects.filter(pk__in=newest)}


def is_silent(run: PipelineRun, *, clock: Clock = utcnow) -> bool:
    """Return whether a run ended without saying so."""
    return run.finished_at is None and subtract_age(clock()) - run.reported_at > SILENT


def is_running(job_id: str) -> bool:
    """Return whether a run of this replay or ingest goes on."""
    return any(not is_silent(run) for run in PipelineRun.objects.filter(job_id=job_id, finished_at=None))


def has_failed(run: PipelineRun, *, clock: Clock = utcnow) -> bool:
    return bool(run.failure) or is_silent(run, clock=clock)


def duration(run: PipelineRun, *, clock: Clock = utcnow) -> timedelta:
    """Return how long a run took, or has taken until now. Of one that is silent, the time to its last report counts."""
    until = run.finished_at or (run.reported_at if is_silent(run, clock=clock) else clock())
    return until - run.started_at
