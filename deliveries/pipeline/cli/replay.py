"""`manage.py pipeline replay`: publishes archived messages again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, TextIO

from django.conf import settings

from deliveries.models import PublishJob
from deliveries.pipeline.archiving.locks import reading
from deliveries.pipeline.cli.backfill import moment
from deliveries.pipeline.jobs import replay
from deliveries.pipeline.jobs.replays import ReplaySpec, begin_replay
from deliveries.pipeline.publishing import publishjobs
from deliveries.pipeline.session import command_session
from deliveries.telemetry.runs import Kind, running
from pushhub.common.errors import InvalidArgument

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
    spec = _spec(options) if job is None else ReplaySpec.of(job)
    with reading(settings.ARCHIVE):
        if dry_run:
            _Work(spec, rate, stderr)
            return
        with running(Kind.REPLAY, job_id=options["resume"]) as noted:
            job = job or begin_replay(spec, job_id=options["id"])
            if job.finished_at is not None:
                noted.job_id = job.job_id
                stdout.write(publishjobs.done_before(job))
                return
            with publishjobs.failure_noted(job, noted):
                _publish(_Work(spec, rate, stderr), job, stdout)


class _Work:
    """The messages of a replay and where they go. Prints the plan when it is created."""

    def __init__(self, spec: ReplaySpec, rate: int, stderr: TextIO) -> None:
        self.spec = spec
        self.stderr = stderr
        self.target = spec.target(rate=rate)
        self.session = command_session("replay")
        self.messages = replay.chosen(
            self.session,
            root=settings.ARCHIVE,
            topic=self.target.topic.name,
            since=spec.since,
            until=spec.until,
            filter=spec.filter,
        )
        self.plan = plan = replay.plan(self.messages)
        if plan.messages:
            stderr.write(f"plan: {plan.messages:,} messages, {plan.bytes:,} bytes, from {plan.first} to {plan.last}")
        else:
            stderr.write("plan: no archived message of that time passes the filter, so nothing is published")

    def show(self, now: publishjobs.Progress) -> None:
        self.stderr.write("\r" + publishjobs.bar(now.published, self.plan.messages), ending="")  # type: ignore[call-arg]


def _publish(work: _Work, job: PublishJob, stdout: TextIO) -> None:
    if job.parts is None:
        publishjobs.divide_job(job, replay.divided(work.messages, work.plan), total=work.plan.messages)
    # An older version divided by ids, and so did this one if the first message with a key came later.
    in_order = work.plan.ordered and replay.has_spans(job)
    frame = replay.frame_of(work.messages, job, in_order=in_order)
    publishjobs.run_job(job, frame, session=work.session, target=work.target, in_order=in_order, show=work.show)
    work.stderr.write("")
    stdout.write(f"published {publishjobs.progress_of(job).published:,} messages as {job.job_id}")


def _spec(options: dict[str, Any]) -> ReplaySpec:
    for name, time in (("--from", options["since"]), ("--to", options["until"])):
        if time is None:
            raise InvalidArgument(f"{name} is needed: a time such as 2026-11-21T12:00:00Z.", field=name)
    spec = ReplaySpec(options["topic"], options["subscription"], options["since"], options["until"], options["filter"])
    spec.check()
    return spec
