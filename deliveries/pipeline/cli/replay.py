"""`manage.py pipeline replay`: archived messages, published once more."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings

from deliveries.models import PublishJob
from deliveries.pipeline import replay
from deliveries.pipeline.publishjobs import job_begin, job_run
from deliveries.pipeline.session import spark_session
from pushhub.errors import FailedPrecondition, PushHubError
from pushhub.protojson import timestamp_parse
from subscriptions.models import Topic
from subscriptions.selectors import subscription_get, topic_get

HELP = "Publish archived messages once more, to a topic or to one of its subscriptions."


def moment(text: str) -> datetime:
    try:
        return timestamp_parse(text, field="time")
    except PushHubError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time such as 2026-11-21T12:00:00Z") from error


def add_arguments(parser: ArgumentParser) -> None:
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--topic", help="projects/shop/topics/orders: to all its subscriptions")
    to.add_argument("--subscription", help="projects/shop/subscriptions/worker: to this one alone")
    parser.add_argument("--from", dest="since", type=moment, required=True, help="published at this time or later")
    parser.add_argument("--to", dest="until", type=moment, required=True, help="and before this time")
    parser.add_argument("--filter", default="", help='such as attributes.kind = "order" AND json.total = "5"')
    parser.add_argument("--rate", type=int, default=0, help="at most so many messages a second")
    parser.add_argument("--dry-run", action="store_true", help="say what would be published, and end")
    parser.add_argument("--id", default="", help="no message is published twice under it; else made of the rest")


def run(*, stdout: TextIO, stderr: TextIO, dry_run: bool, rate: int, **options: Any) -> None:
    topic, only = _target(options)
    session = spark_session(
        "pushhub replay", master=settings.SPARK_MASTER, memory=settings.SPARK_MEMORY, extra=settings.SPARK_CONF
    )
    since, until = options["since"], options["until"]
    root = Path(settings.ARCHIVE)
    messages = replay.chosen(session, root=root, topic=topic.name, since=since, until=until, filter=options["filter"])
    plan = replay.plan(messages)
    stderr.write(f"plan: {plan.messages:,} messages, {plan.bytes:,} bytes, from {plan.first} to {plan.last}")
    if dry_run:
        return
    spec = {
        "topic": topic.name,
        "subscription": options["subscription"] or "",
        "from": since.isoformat(),
        "to": until.isoformat(),
        "filter": options["filter"],
    }
    job = job_begin(job_id=options["id"] or f"replay {' '.join(spec.values())}"[:100], kind="replay", spec=spec)
    items = replay.items(messages, after_id=job.position)

    def show(job: PublishJob) -> None:
        stderr.write(f"\r{job.published:,} of {plan.messages:,}", ending="")  # type: ignore[call-arg]

    job_run(job, items, topic=topic, only=only, rate=rate, progress=show)
    stderr.write("")
    stdout.write(f"published {job.published:,} messages as {job.job_id}")


def _target(options: dict[str, Any]) -> tuple[Topic, int | None]:
    if options["topic"]:
        return topic_get(name=options["topic"], field="topic"), None
    found = subscription_get(name=options["subscription"])
    if found.topic is None or found.detached:
        raise FailedPrecondition(f"{found.name} has no topic any more.")
    return found.topic, found.pk
