"""What the doctor finds of the running service: what readiness knows, what capacity is left, an endpoint's reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from django.conf import settings

from deliveries.backlog.default import default_backlog
from deliveries.diagnosis.endpoint import endpoint_steps
from deliveries.diagnosis.steps import StepStatus
from deliveries.inspection.overview import last_round, overview
from deliveries.push.sending.httpclient import client_options
from deliveries.telemetry.export.probes import Component, Status
from deliveries.telemetry.export.readiness import CHECKS, probes
from deliveries.telemetry.series.coverage import counting
from pushhub.common.clock import utcnow
from pushhub.doctor.finding import Finding, Level, ok
from subscriptions.models import Project

LEVELS = {Status.OK: Level.OK, Status.DEGRADED: Level.WARNING, Status.UNAVAILABLE: Level.FAILED}
REMEDIES = {
    "database": "See the findings of the database and of the disk.",
    "redis": "See the findings of Redis.",
    "push_workers": "Start a push worker in each region, or look at the logs of those there are.",
    "maintenance": "Start a maintenance worker, or look at the logs of those there are.",
    "journal": "Make room on the disk of the journal, or look at the bucket.",
    "replica": "Look at its log and at pg_stat_replication of the primary; PUSHHUB_REPLICA_URL names it.",
    "pipeline": "Start a maintenance worker or the rollup, and look at their logs.",
}
#: Without these nothing else works.
CAUSES = ("database", "redis")
STEP_LEVELS = {StepStatus.OK: Level.OK, StepStatus.WARNING: Level.WARNING, StepStatus.SKIPPED: Level.WARNING}


def service() -> Iterator[Finding]:
    """Say what `/readyz` says, and what capacity is left. May raise django.db.Error and redis.RedisError."""
    results = probes().results()
    yield from readiness(results)
    if all(results[cause].status != Status.UNAVAILABLE for cause in CAUSES):
        yield from capacity(results)


def readiness(results: Mapping[str, Component]) -> Iterator[Finding]:
    for name in CHECKS:
        component = results[name]
        level = LEVELS[component.status]
        text = "; ".join(filter(None, [component.reason, component.state])) or "it works"
        # What needs Redis or the database gives the reason why that is away.
        cause = next((cause for cause in CAUSES if component.reason == results[cause].reason), name)
        yield Finding(name.replace("_", " "), level, text, "" if level == Level.OK else REMEDIES[cause])


def capacity(results: Mapping[str, Component]) -> Iterator[Finding]:
    """Say how much more this installation can hold, by the figures of its own processes."""
    backlog = default_backlog()
    outstanding = sum(state.outstanding for state in backlog.states(backlog.lanes()) if state is not None)
    workers = int(results["push_workers"].figures.get("workers", 0))
    most = workers * settings.WORKER_OUTSTANDING
    yield ok("capacity", f"pushes: {outstanding:,} of {most:,} may be outstanding, with {workers} push workers")
    figures = results["redis"].figures
    if "backlog_bytes" in figures:
        used, budget = (int(figures[name]) // 1_000_000 for name in ("backlog_bytes", "budget_bytes"))
        yield ok(
            "capacity", f"Redis: {budget - used:,} of {budget:,} MB are left for messages; others wait in the database"
        )
    if seconds := results["database"].figures.get("seconds"):
        yield ok("capacity", f"database: it stores a message in {seconds * 1000:.0f} ms; publishes share commits")
    totals, taken = overview(Project.objects.all(), counting()), last_round(utcnow())
    if totals.undelivered is not None and taken is not None:
        pushed = f"{totals.push_rates[-1]:,.0f} pushes/s" if totals.push_rates else "no push was counted lately"
        waited = f"{totals.undelivered:,} messages waited, the oldest {totals.oldest_seconds} s"
        yield ok("capacity", f"backlog at {taken:%H:%M} UTC: {waited}; {pushed}")


def endpoint(url: str) -> Iterator[Finding]:
    """Try the way to a push endpoint up to its certificate; nothing is sent to it."""
    for step in endpoint_steps(url, client_options()):
        yield Finding("endpoint", STEP_LEVELS.get(step.status, Level.FAILED), step.message, step.advice)
