"""The Celery application: queues, beat, and the push worker's extension points."""

from __future__ import annotations

import os
import sys
from typing import Any
from urllib.parse import urlsplit

from celery import Celery
from celery.signals import celeryd_init, setup_logging, task_postrun, task_prerun
from django.conf import settings
from django.db import close_old_connections, connection
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

from deliveries.rules.shards import SHARDS
from pushhub.common.environment import SettingError
from pushhub.common.redisclient import shared_url
from pushhub.machines import MACHINES, OF_A_MACHINE

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
# `manage.py migrate` has run Django's checks. In a worker they would import the pages of the console and of the API.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

#: kombu's name for our batch-fetching Redis transport.
TRANSPORT_ALIASES["pushhub"] = "deliveries.push.transport:Transport"

#: Seconds between rounds of the reconciler and between sweeps of expired deliveries, and between sweeps of what was
#: settled. Each task costs some 6 ms of CPU, so few of them are frequent.
AUDIT_SECONDS = 30
SWEEP_SECONDS = 10
#: Seconds between sweeps of expired snapshots and subscriptions.
RESOURCES_SECONDS = 60
#: Seconds between rotations of signing keys, and between sweeps of expired credentials and of old audit entries.
KEYS_SECONDS = 300
CREDENTIALS_SECONDS = 600
AUDIT_SWEEP_SECONDS = 3600
#: Seconds between checks for journals to seal and segments to count, between gauge samples, and between sweeps of old
#: metrics and segments.
SEAL_SECONDS = 5
GAUGE_SECONDS = 60
METRICS_SWEEP_SECONDS = 600
#: Seconds between batches of dead letters that are redriven or discarded.
DEAD_LETTERS_SECONDS = 5


def broker_url(redis_url: str) -> str:
    """Return the broker's URL, without a password. Only logs need it: the transport connects by itself."""
    parts = urlsplit(redis_url)
    if parts.scheme == "unix":
        return f"pushhub+socket://{parts.path}"
    first, *_ = parts.netloc.rpartition("@")[2].split(",")
    return f"pushhub://{first}{parts.path}"


def every(seconds: float, task: str, *args: Any) -> dict[str, Any]:
    """Return beat's entry for a task. One that waits until the next is sent is dropped, as the next does the same."""
    to_machines = {"queue": MACHINES, "declare": [MACHINES.exchange]} if task in OF_A_MACHINE else {}
    return {"task": task, "args": args, "schedule": seconds, "options": {"expires": seconds, **to_machines}}


def every_by_shard(seconds: float, task: str) -> dict[str, dict[str, Any]]:
    """Return beat's entries for a task that is sent for each shard, so that several workers share the work."""
    return {f"{task}-{shard}": every(seconds, task, shard) for shard in range(SHARDS)}


try:
    _broker_url = broker_url(shared_url())
except SettingError as error:  # of `celery -A pushhub`, which would show a traceback of any other exception
    sys.exit(str(error))
app = Celery("pushhub", task_cls="pushhub.leases:TimedTask")
app.conf.update(
    broker_url=_broker_url,
    # Wait for an unreachable Redis without limit, so that nobody has to restart the worker.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_consumer="pushhub.runtime.consumer:Consumer",
    # Beat sends a task again anyway, and kombu would hide the error of the first try by that of the second.
    task_publish_retry=False,
    task_ignore_result=True,
    task_default_queue="maintenance",
    # A timed task that is lost with its worker is sent again by beat, so none is recorded in Redis until it is done.
    task_queues=[Queue("maintenance", no_ack=True)],
    task_serializer="json",
    accept_content=["json"],
    worker_send_task_events=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    timezone="UTC",
    beat_scheduler="pushhub.beat:LeasedScheduler",
    beat_schedule={
        **every_by_shard(AUDIT_SECONDS, "deliveries.backlog_audit"),
        **every_by_shard(AUDIT_SECONDS, "deliveries.expired_sweep"),
        "regions-audit": every(AUDIT_SECONDS, "deliveries.regions_audit"),
        "messages-sweep": every(SWEEP_SECONDS, "deliveries.messages_sweep"),
        "resources-sweep": every(RESOURCES_SECONDS, "deliveries.resources_sweep"),
        "journals-seal": every(SEAL_SECONDS, "deliveries.journals_seal"),
        "segments-count": every(SEAL_SECONDS, "deliveries.segments_count"),
        "dead-letters-advance": every(DEAD_LETTERS_SECONDS, "deliveries.dead_letters_advance"),
        "dead-letters-sweep": every(SWEEP_SECONDS, "deliveries.dead_letters_sweep"),
        "gauges-take": every(GAUGE_SECONDS, "deliveries.gauges_take"),
        "counters-sample": every(GAUGE_SECONDS, "deliveries.counters_sample"),
        "metrics-sweep": every(METRICS_SWEEP_SECONDS, "deliveries.metrics_sweep"),
        "signing-keys": every(KEYS_SECONDS, "subscriptions.signing_keys_maintain"),
        "credentials-sweep": every(CREDENTIALS_SECONDS, "subscriptions.credentials_sweep"),
        "audit-sweep": every(AUDIT_SWEEP_SECONDS, "subscriptions.audit_sweep"),
    }
    | ({"segments-ship": every(SEAL_SECONDS, "deliveries.segments_ship")} if settings.JOURNAL_BUCKET else {})
    | ({"archive-start": every(settings.ARCHIVE_SECONDS, "deliveries.archive_start")} if settings.ARCHIVING else {}),
)
# Celery would open the database anew for each task.
app.conf.CELERY_DB_REUSE_MAX = sys.maxsize
app.autodiscover_tasks(["deliveries", "subscriptions"])


@celeryd_init.connect
def install_push_worker(**_: Any) -> None:
    """Install the engine and beat in a worker. Publishers import this module too, and don't need it."""
    from deliveries.push.bootsteps import install
    from pushhub import beat

    install(app)
    beat.install(app)


@task_prerun.connect
def renew_connection(**_: Any) -> None:
    """Close a connection to the database that is too old, or broke in an earlier task."""
    close_old_connections()


@task_postrun.connect
def free_pages(**_: Any) -> None:
    """Give the memory of SQLite's page cache back until the next task."""
    if connection.vendor == "sqlite" and connection.connection is not None and not connection.in_atomic_block:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA shrink_memory")


# `celery inspect` offers the commands that its own process knows. Publishers import this module too and need none.
if "celery.bin.control" in sys.modules:
    import deliveries.push.inspection  # noqa: F401


@setup_logging.connect
def keep_django_logging(**_: Any) -> None:
    """Keep the logging that Django has configured. Without a receiver Celery would configure its own."""
