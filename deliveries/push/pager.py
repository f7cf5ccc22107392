"""Reads the pages that lanes ask for, in threads of its own: the push of a message never waits for one."""

from __future__ import annotations

from dataclasses import dataclass

from deliveries.backlog.connection import beside_an_outage
from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import PAGE_ROWS, page_in
from deliveries.backlog.records import Lane, PageRequest
from pushhub.common import names
from pushhub.common.expiring import ExpiringCache
from pushhub.common.jobs import Job, Jobs
from subscriptions.selectors import push_settings

#: One project's pages are read one after the other, so a second thread is for those of the others.
THREADS = 2


class Pager:
    """Reads one page of each project at a time, in turns. A lane that asks again keeps its place.

    Lanes that want few rows share a page with others of their project.

    Prompt lanes have a thread of their own: a thousand others would make a busy one wait for seconds without a message.
    """

    def __init__(self) -> None:
        self._prompt_jobs = Jobs("push-pager-prompt")
        self._jobs = Jobs("push-pager", threads=THREADS)
        #: Requests of lanes whose projects are not known yet.
        self._unsorted: dict[Lane, PageRequest] = {}
        self._projects: ExpiringCache[int, str] = ExpiringCache(seconds=3600, max_entries=100_000)

    def start(self) -> None:
        self._prompt_jobs.start()
        self._jobs.start()

    def stop(self) -> None:
        self._prompt_jobs.stop()
        self._jobs.stop()

    def page(self, request: PageRequest) -> None:
        """Read a page. Of the requests of a lane that wait, the newest counts. Needs neither the database nor Redis."""
        project = self._projects.get(request.lane.subscription_id)
        if project is None:
            self._unsorted[request.lane] = request
            self.run(self._sort)
        else:
            self._put(project, request)

    def _put(self, project: str, request: PageRequest) -> None:
        jobs = self._prompt_jobs if request.is_prompt else self._jobs
        jobs.put(project, request.lane, _Reading(jobs, project, request))

    def run(self, job: Job) -> None:
        """Run a job that may take long, beside the pages. It runs once if it is put twice before its turn."""
        self._jobs.put(job, job, job)

    def _sort(self) -> None:
        """Find out the projects of new lanes, and have their pages read."""
        unsorted = dict(self._unsorted)
        settings_by_id = push_settings({lane.subscription_id for lane in unsorted})
        for lane, request in unsorted.items():
            settings = settings_by_id.get(lane.subscription_id)
            # The deliveries of a deleted subscription belong to nobody.
            project = names.parse_subscription(settings.name)[0] if settings is not None else ""
            # A newer request may replace this one until the project is known; later it takes its place among the jobs.
            self._put(project, self._unsorted.pop(lane, request))
            self._projects.put(lane.subscription_id, project)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A job: reads a page of a lane, and of the project's next ones, as many as one page has rows."""

    jobs: Jobs
    project: str
    request: PageRequest

    def __call__(self) -> None:
        rows = self.request.rows

        def fits(job: Job) -> bool:
            nonlocal rows
            rows += job.request.rows if isinstance(job, _Reading) else 0
            return isinstance(job, _Reading) and rows <= PAGE_ROWS

        others = self.jobs.take_more(self.project, fits=fits)
        requests = [self.request, *(job.request for job in others if isinstance(job, _Reading))]
        with beside_an_outage():  # the lanes ask again
            # Another worker may have brought a page meanwhile, or the lane no longer wants it.
            if wanted := default_backlog().wanted(requests):
                page_in(wanted)
