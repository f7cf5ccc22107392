"""Whether PushHub can take and deliver messages: database, Redis, workers and the data pipeline."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.db import connection, connections

from deliveries.backlog.connection import server_ms
from deliveries.backlog.default import impatient_backlog
from deliveries.backlog.records import PREFIX, all_cells, cell_key
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.backlog.regions import KEY_SECONDS as AUDIT_KEPT_SECONDS
from deliveries.backlog.timed import oldest_sent
from deliveries.backlog.workerverbs import DEAD_AFTER_MS
from deliveries.store.trial import refusal, seconds_to_store
from deliveries.telemetry.counting.lag import LAG_SECONDS, lag_seconds
from deliveries.telemetry.counting.lease import state_line
from deliveries.telemetry.export.probes import Component, Probes, Status
from deliveries.telemetry.journal.alarm import alarms
from deliveries.telemetry.series.coverage import counting
from pushhub.common.background import STUCK_SECONDS
from pushhub.common.replica import TOLD_SECONDS, has_replica, watch

#: What this check writes, and when Redis forgets it.
WRITTEN_KEY = f"{PREFIX}readiness"
KEY_SECONDS = 60
#: The whole answer comes within a second.
DEADLINE_SECONDS = 0.8
#: The maintenance worker audits every 30 seconds (pushhub/celery.py).
AUDIT_LATE_SECONDS = 90.0


def database() -> Component:
    """Check that a message can be stored. Anybody may ask, so one that was stored a moment ago suffices."""
    try:
        seconds = seconds_to_store()
    finally:
        connection.close()
    if cause := refusal():
        return Component(Status.UNAVAILABLE, cause)
    return Component(Status.OK, figures={"seconds": seconds})


def redis_writes(*, asker: str = "check") -> Component:
    """Check that a key can be written."""
    began = time.monotonic()
    clients = impatient_backlog(asker=asker).clients
    clients.shared.set(WRITTEN_KEY, 1, ex=KEY_SECONDS)
    pipe = clients.cells.pipeline(transaction=False)
    for cell in all_cells():
        pipe.get(cell_key(cell, "bytes"))
    backlog_bytes = sum(int(held or 0) for held in pipe.execute())
    figures = {"seconds": time.monotonic() - began, "backlog_bytes": backlog_bytes}
    return Component(Status.OK, figures=figures | {"budget_bytes": settings.REDIS_MB * 1_000_000})


def push_workers(*, asker: str = "check") -> Component:
    """Push workers that gave a sign of life lately, in all regions, and whether they get their jobs done."""
    client: Any = impatient_backlog(asker=asker).client
    now_ms = server_ms(client)
    # When each worker last gave a sign of life, and how old its oldest job was then (beat.lua).
    beats: list[tuple[bytes, float]] = client.zrange(cell_key(0, "workers"), 0, -1, withscores=True)
    ages_ms = client.hgetall(cell_key(0, "jobs"))
    living = {worker: now_ms - beat for worker, beat in beats if now_ms - beat < DEAD_AFTER_MS}
    if not living:
        return Component(Status.UNAVAILABLE, "no push worker gives a sign of life", {"workers": 0})
    oldest_job = max(int(ages_ms.get(worker, 0)) for worker in living) / 1000
    figures = {
        "workers": len(living),
        "last_sign_of_life_seconds": min(living.values()) / 1000,
        "oldest_job_seconds": oldest_job,
    }
    if oldest_job > STUCK_SECONDS:
        return Component(Status.DEGRADED, f"a push worker has had a job for {oldest_job:.0f} s", figures)
    return Component(Status.OK, figures=figures)


def maintenance() -> Component:
    """Check the maintenance workers by the time of the last audit, and by the timed tasks that are not done."""
    client = impatient_backlog(asker="check").shared
    audit, oldest = maintenance_in(client), oldest_sent(client)
    figures = {**audit.figures, "oldest_job_seconds": oldest.seconds if oldest else 0.0}
    if audit.status == Status.OK and oldest and oldest.seconds > AUDIT_LATE_SECONDS:
        return Component(Status.DEGRADED, f"{oldest.name} was not done for {oldest.seconds:.0f} s", figures)
    return replace(audit, figures=figures)


def maintenance_in(client: redis.Redis) -> Component:
    """Check the maintenance workers by what this Redis knows of the last audit."""
    left_ms: Any = client.pttl(AUDIT_KEY)
    if left_ms < 0:
        return Component(Status.DEGRADED, f"no audit yet, or none for {AUDIT_KEPT_SECONDS} s")
    silence = max(AUDIT_KEPT_SECONDS - left_ms / 1000, 0.0)
    status = Status.OK if silence < AUDIT_LATE_SECONDS else Status.DEGRADED
    reason = "" if status == Status.OK else f"no audit for {silence:.0f} s"
    return Component(status, reason, {"last_sign_of_life_seconds": silence})


def journal() -> Component:
    """Check for stopped journals, whose attempts the metrics lack, and for segments that wait for the bucket."""
    current = alarms(impatient_backlog(asker="check").shared)
    # Several workers of a machine may report the same segments.
    waiting = max((alarm.waiting for alarm in current), default=0)
    stopped = sum(not alarm.waiting for alarm in current)
    reasons = [f"the journals of {stopped} processes have stopped"] if stopped else []
    reasons += [f"{waiting} segments wait for the bucket"] if waiting else []
    figures = {"stopped": stopped} | ({"segments_waiting_for_bucket": waiting} if waiting else {})
    return Component(Status.DEGRADED if reasons else Status.OK, "; ".join(reasons), figures)


def pipeline() -> Component:
    """Check up to when attempts are counted, and how far Spark is behind if it runs here."""
    if not settings.JOURNAL:
        return Component(Status.OK, state="PUSHHUB_JOURNAL is off, so nothing is counted")
    try:
        progress = counting()
    finally:
        connection.close()
    if progress.counted_to is None:
        return Component(Status.OK, state="nothing has been counted yet")
    lag = lag_seconds(Path(settings.JOURNAL), now=time.time())
    figures = {"segments_waiting": progress.waiting} | ({"lag_seconds": lag} if lag is not None else {})
    state = state_line(progress)
    if lag is not None and lag > LAG_SECONDS:
        return Component(Status.DEGRADED, f"no segment was counted for {lag:.0f} s", figures, state)
    if not progress.runs:
        return Component(Status.DEGRADED, "nobody counts", figures, state)
    return Component(Status.OK, figures=figures, state=state)


def read_replica() -> Component:
    """Check how far the replica is behind. What it can't answer, the primary does, so it is degraded at worst."""
    try:
        state = watch.state()
    finally:
        connections.close_all()
    if state.unusable or state.age_seconds > TOLD_SECONDS:
        return Component(Status.DEGRADED, state.text)
    return Component(Status.OK, figures={"age_seconds": state.age_seconds}, state=state.text)


CHECKS = {
    "database": database,
    "redis": redis_writes,
    "push_workers": push_workers,
    "maintenance": maintenance,
    "journal": journal,
    "pipeline": pipeline,
    **({"replica": read_replica} if has_replica() else {}),
}


@cache
def probes() -> Probes:
    """Return the probes of this process."""
    return Probes(CHECKS, deadline_seconds=DEADLINE_SECONDS)


def overall(components: dict[str, Component]) -> Status:
    """Return the worst status among the components. A replica may hang, and the primary answers in its place."""
    statuses = {component.status for name, component in components.items() if name != "replica"}
    if components.get("replica", Component(Status.OK)).status != Status.OK:
        statuses.add(Status.DEGRADED)
    return next((status for status in (Status.UNAVAILABLE, Status.DEGRADED) if status in statuses), Status.OK)
