"""The Celery application: queues, beat, and the push worker's extension points."""

from __future__ import annotations

import os
import ssl
import sys
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, setup_logging
from django.conf import settings
from kombu.transport import TRANSPORT_ALIASES

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
# `manage.py migrate` has run Django's checks. In a worker they would import the pages of the console and of the API.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

#: kombu's name for our batch-fetching Redis transport.
TRANSPORT_ALIASES["pushhub"] = "deliveries.push.transport:Transport"

#: Seconds between rounds of the reconciler, and between sweeps of settled and expired messages.
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
    """Return the broker URL of our transport for a URL that redis-py takes."""
    scheme, _, rest = redis_url.partition("://")
    if scheme == "unix":
        return f"pushhub+socket://{rest}"
    return f"pushhub://{rest}"


app = Celery("pushhub")
app.conf.update(
    broker_url=broker_url(settings.REDIS_URL),
    broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED} if settings.REDIS_URL.startswith("rediss://") else None,
    # Wait for an unreachable Redis without limit, so that nobody has to restart the worker.
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"health_check_interval": 30},
    task_ignore_result=True,
    task_default_queue="maintenance",
    task_serializer="json",
    accept_content=["json"],
    worker_send_task_events=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    timezone="UTC",
    beat_schedule={
        "backlog-audit": {"task": "deliveries.backlog_audit", "schedule": AUDIT_SECONDS},
        "messages-sweep": {"task": "deliveries.messages_sweep", "schedule": SWEEP_SECONDS},
        "resources-sweep": {"task": "deliveries.resources_sweep", "schedule": RESOURCES_SECONDS},
        "journals-seal": {"task": "deliveries.journals_seal", "schedule": SEAL_SECONDS},
        "segments-ship": {"task": "deliveries.segments_ship", "schedule": SEAL_SECONDS},
        # A late round is dropped, because the next one counts the same segments.
        "segments-count": {
            "task": "deliveries.segments_count",
            "schedule": SEAL_SECONDS,
            "options": {"expires": SEAL_SECONDS},
        },
        "dead-letters-advance": {
            "task": "deliveries.dead_letters_advance",
            "schedule": DEAD_LETTERS_SECONDS,
            "options": {"expires": DEAD_LETTERS_SECONDS},
        },
        "gauges-take": {"task": "deliveries.gauges_take", "schedule": GAUGE_SECONDS},
        "counters-sample": {"task": "deliveries.counters_sample", "schedule": GAUGE_SECONDS},
        "metrics-sweep": {"task": "deliveries.metrics_sweep", "schedule": METRICS_SWEEP_SECONDS},
        "signing-keys": {"task": "subscriptions.signing_keys_maintain", "schedule": KEYS_SECONDS},
        "credentials-sweep": {"task": "subscriptions.credentials_sweep", "schedule": CREDENTIALS_SECONDS},
        "audit-sweep": {"task": "subscriptions.audit_sweep", "schedule": AUDIT_SWEEP_SECONDS},
    }
    | (
        {
            "archive-start": {
                "task": "deliveries.archive_start",
                "schedule": settings.ARCHIVE_SECONDS,
                "options": {"expires": settings.ARCHIVE_SECONDS},
            }
        }
        if settings.ARCHIVING
        else {}
    ),
)
app.autodiscover_tasks(["deliveries", "subscriptions"])


@celeryd_init.connect
def install_push_worker(**_: Any) -> None:
    """Install the engine in a worker. Publishers import this module too, and don't need it."""
    from deliveries.push.worker import install

    install(app)


# `celery inspect` offers the commands that its own process knows. Publishers import this module too and need none.
if "celery.bin.control" in sys.modules:
    import deliveries.push.inspection  # noqa: F401


@setup_logging.connect
def keep_django_logging(**_: Any) -> None:
    """Keep the logging that Django has configured. Without a receiver Celery would configure its own."""
