"""The Celery application: queues, beat, and the push worker's extension points."""

from __future__ import annotations

import os
import ssl
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, setup_logging
from django.conf import settings
from kombu.transport import TRANSPORT_ALIASES

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")

#: kombu's name for our batch-fetching Redis transport.
TRANSPORT_ALIASES["pushhub"] = "deliveries.push.transport:Transport"

#: Seconds between the reconciler's rounds, and between sweeps of what retention lets go.
AUDIT_SECONDS = 30
SWEEP_SECONDS = 10
#: Between looks for snapshots and subscriptions whose time is over.
RESOURCES_SECONDS = 60
#: And between looks at the signing keys' ages, at credentials that have ended, and at the log's oldest entries.
KEYS_SECONDS = 300
CREDENTIALS_SECONDS = 600
AUDIT_SWEEP_SECONDS = 3600
#: Between looks for journals to seal and segments to count, between gauges, and between sweeps of old metrics and
#: segments.
SEAL_SECONDS = 5
GAUGE_SECONDS = 60
METRICS_SWEEP_SECONDS = 600


def broker_url(redis_url: str) -> str:
    """The broker's URL for our transport, from the URL redis-py takes."""
    scheme, _, rest = redis_url.partition("://")
    if scheme == "unix":
        return f"pushhub+socket://{rest}"
    return f"pushhub://{rest}"


app = Celery("pushhub")
app.conf.update(
    broker_url=broker_url(settings.REDIS_URL),
    broker_use_ssl={"ssl_cert_reqs": ssl.CERT_REQUIRED} if settings.REDIS_URL.startswith("rediss://") else None,
    # A Redis that is away is waited for, however long; nobody has to start the worker again.
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
        # A turn that has to wait for longer tasks is not made up for: the next one counts what it would have.
        "segments-count": {
            "task": "deliveries.segments_count",
            "schedule": SEAL_SECONDS,
            "options": {"expires": SEAL_SECONDS},
        },
        "gauges-take": {"task": "deliveries.gauges_take", "schedule": GAUGE_SECONDS},
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
    """Only a worker needs the engine; publishers that import this module are spared it."""
    from deliveries.push.worker import install

    install(app)


@setup_logging.connect
def keep_django_logging(**_: Any) -> None:
    """Django has configured logging already; Celery does that itself unless somebody listens here."""
