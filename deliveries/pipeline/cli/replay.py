"""`manage.py pipeline replay`: publishes archived messages again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any, TextIO

from django.conf import settings

from deliveries.models import PublishJob
from deliveries.pipeline.archiving.locks import reading
from deliveries.pipeline.cli.backfill import moment
from deliveries.pipeline.jobs import replay
from deliveries.pipeline.publishing import publishjobs
from deliveries.pipeline.session import command_session
from deliveries.telemetry.runs import Kind, running
from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = "Publish archived messages again, to a topic or to one of its subscriptions."


def add_arguments(parser: ArgumentParser) -> None:
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--topic", default="", help="projects/shop/topics/orders: to all its subscriptions")
    to.add_argument("--subscription", default="", help="projects/shop/subscriptions/worker: to this one alone")
    to.add_argument("--resume", default="", metavar="ID", help="continue the replay with this id; the rest is known")
    parser.add_argument("--from", dest="since", type=moment, help="only messages published at this time or later")
    parser.add_argument("--to", dest="until", type=moment, help="only messages published before this time")
    parser.add_argument("--filter", default="", help='such as attributes.kind = "order" AND json.total = "5"')
    parser.add_argument("--rate", type=int, default=0, help="the most messages per second")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be published")
    parser.add_argument(
        "--id", default="", help="no message is published twice under one id; the default is made from the options"
    )


def run(*, stdout: TextIO, stderr: TextIO, dry_run: bool, rate: int, **options: Any) -> None:
    publishjobs.check_rate(rate)
    job = publishjobs.find_job(options["resume"]) if options["resume"] else None
    spec = _spec(options) if job is None else replay.ReplaySpec.of(job)
    with reading(settings.ARCHIVE):
        if dry_run:
            spec.target()  # a missing one is told before Spark starts
            _planned(spec, stderr)
            return
        with running(Kind.REPLAY, job_id=options["resume"]) as noted:
            job = job or replay.begin_replay(spec, job_id=options["id"])
            if job.finished_at is not None:
                noted.job_id = job.job_id
                stdout.write(publishjobs.done_before(job))
                return
            with publishjobs.failure_noted(job, noted):
                _publish(spec, job, rate, stderr)
            stdout.write(f"published {publishjobs.progress_of(job).published:,} messages as {job.job_id}")


def _planned(spec: replay.ReplaySpec, stderr: TextIO) -> tuple[DataFrame, replay.Plan]:
    """Return the messages of a replay, and print the plan."""
    messages = replay.chosen(command_session("replay"), spec, root=settings.ARCHIVE)
    plan = replay.plan(messages)
    if plan.messages:
        stderr.write(f"plan: {plan.messages:,} messages, {plan.bytes:,} bytes, from {plan.first} to {plan.last}")
    else:
        stderr.write("plan: no archived message of that time passes the filter, so nothing is published")
    return messages, plan


def _publish(spec: replay.ReplaySpec, job: PublishJob, rate: int, stderr: TextIO) -> None:
    target = spec.target(rate=rate)
    messages, plan = _planned(spec, stderr)
    if job.parts is None:
        publishjobs.divide_job(job, replay.divided(messages, plan), total=plan.messages)
    # An older version divided by ids, and so did this one if the first message with a key came later.
    in_order = plan.ordered and replay.has_spans(job)

    def show(now: publishjobs.Progress) -> None:
        stderr.write("\r" + publishjobs.bar(now.published, plan.messages), ending="")  # type: ignore[call-arg]

    frame = replay.frame_of(messages, job, in_order=in_order)
    publishjobs.run_job(job, frame, session=messages.sparkSession, target=target, in_order=in_order, show=show)
    stderr.write("")


def _spec(options: dict[str, Any]) -> replay.ReplaySpec:
    for name, time in (("--from", options["since"]), ("--to", options["until"])):
        if time is None:
            raise InvalidArgument(f"{name} is needed: a time such as 2026-11-21T12:00:00Z.", field=name)
    target = options["topic"], options["subscription"]
    spec = replay.ReplaySpec(*target, options["since"], options["until"], options["filter"])
    spec.check()
    return spec
