"""The engine: an event loop in its own thread, which sends all pushes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from deliveries.push.sending.delivery import PushDelivery, Step, next_step
from deliveries.push.sending.httpclient import push_client
from deliveries.push.sending.plans import PlanBook, PushPlan
from deliveries.push.sending.sender import send
from deliveries.rules.outcome import Reason, Verdict
from pushhub.common.background import BackgroundThread
from pushhub.common.servers import new_event_loop

logger = logging.getLogger(__name__)

#: How many pushes of prompt lanes, and of other lanes, are sent before the loop looks at its sockets again. Those of
#: other lanes may each need a new connection, which takes ten times as long.
SLICE, LOW_SLICE = 50, 5
#: How long subscriptions whose plans end soon are gathered: making a hundred plans takes as few statements as one.
RENEWAL_SECONDS = 0.5
#: The time between two signs of life of the loop.
BEAT_SECONDS = 1.0
#: The result of a push that somebody has ended.
TERMINATED = "terminated"


class Engine:
    """Turns deliveries into requests.

    Deliveries that need a plan go to `unprepared`, and those with message transforms to `transform`. `starting` is told
    of the deliveries that are pushed now, and `renew` of the subscriptions whose plans end soon.
    """

    def __init__(
        self,
        *,
        unprepared: Callable[[list[PushDelivery]], None],
        transform: Callable[[list[PushDelivery]], None],
        starting: Callable[[list[PushDelivery]], None],
        renew: Callable[[set[int]], None],
    ) -> None:
        self._loop = new_event_loop()
        self.client = push_client(self._loop)
        self.plans = PlanBook(self.client)
        self._unprepared = unprepared
        self._transform = transform
        self._starting = starting
        self._renew = renew
        #: What is to be pushed: of prompt lanes, and of others.
        self._prompt: deque[PushDelivery] = deque()
        self._others: deque[PushDelivery] = deque()
        #: Subscriptions whose plans end soon.
        self._ending: set[int] = set()
        self._beat: asyncio.TimerHandle | None = None
        self._thread = BackgroundThread("push-engine", self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat_regularly()
        self._loop.run_forever()

    def _beat_regularly(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._thread.beat()
        self._beat = self._loop.call_later(BEAT_SECONDS, self._beat_regularly)

    def accept(self, deliveries: Sequence[PushDelivery]) -> None:
        """Push these deliveries. May be called from any thread."""
        self._loop.call_soon_threadsafe(self._line_up, deliveries)

    def cut(self, deliveries: Sequence[PushDelivery]) -> None:
        """Drop the messages of these deliveries, and end the requests of those that are on their way.

        May be called from any thread.
        """
        self._loop.call_soon_threadsafe(self._cut_all, deliveries)

    def _cut_all(self, deliveries: Sequence[PushDelivery]) -> None:
        for delivery in deliveries:
            delivery.is_cut = True
            if delivery.request is not None:
                delivery.settle_as(Verdict.DROP, TERMINATED)
                self.client.abort(delivery.request)

    def stop(self) -> None:
        """Close all connections and end the thread; deliveries that are still outstanding are released."""
        future = asyncio.run_coroutine_threadsafe(self.client.close(), self._loop)
        try:
            future.result(timeout=5)
        except TimeoutError:
            logger.warning("connections did not close in time")
        self._thread.stopping.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.stop(timeout=5)

    def _line_up(self, deliveries: Sequence[PushDelivery]) -> None:
        had_prompt, had_others = bool(self._prompt), bool(self._others)
        for delivery in deliveries:
            (self._prompt if delivery.is_prompt else self._others).append(delivery)
        if not had_prompt and not had_others and deliveries:
            self._push_some()
        elif not had_prompt and self._prompt:
            # The loop takes long to come to its next turn while others are answered by the thousand.
            self._push_all(next_slice(self._prompt, deque()))

    def _push_some(self) -> None:
        """Push a slice of what waits, prompt lanes first; then look at the sockets."""
        deliveries = next_slice(self._prompt, self._others)
        if self._prompt or self._others:
            self._loop.call_soon(self._push_some)
        self._push_all(deliveries)

    def _push_all(self, deliveries: Sequence[PushDelivery]) -> None:
        now = time.monotonic()
        now_ms = time.time_ns() // 1_000_000
        unprepared: list[PushDelivery] = []
        untransformed: list[PushDelivery] = []
        ready: list[tuple[PushDelivery, PushPlan]] = []
        get = self.plans.get
        for delivery in deliveries:
            if delivery.is_cut:
                delivery.settle_as(Verdict.DROP, TERMINATED)
                continue
            plan = get(delivery.task.subscription_id, now=now)
            step = next_step(delivery, plan)
            if step is Step.PLAN or plan is None:
                unprepared.append(delivery)
                continue
            delivery.plan = plan
            if self.plans.is_ending(delivery.task.subscription_id, plan, now=now):
                self._note_ending(delivery.task.subscription_id)
            if step is Step.TRANSFORM:
                untransformed.append(delivery)
            else:
                ready.append((delivery, plan))
        self._tell_of_start([delivery for delivery, _ in ready])
        for delivery, plan in ready:
            try:
                send(self.client, delivery, plan, now_ms)
            except Exception:
                # A message that can't be turned into a request must not stop the loop or other messages.
                logger.exception("push of %s failed", delivery.task.message.get("messageId"))
                delivery.settle_as(Verdict.NACK, Reason.INTERNAL)
        if unprepared:
            self._unprepared(unprepared)
        if untransformed:
            self._transform(untransformed)

    def _note_ending(self, subscription_id: int) -> None:
        if not self._ending:
            self._loop.call_later(RENEWAL_SECONDS, self._renew_ending)
        self._ending.add(subscription_id)

    def _renew_ending(self) -> None:
        ending, self._ending = self._ending, set()
        self._renew(ending)

    def _tell_of_start(self, deliveries: list[PushDelivery]) -> None:
        try:
            self._starting(deliveries)
        except Exception:
            # Events only inform people: an error here must not keep a push from its endpoint.
            logger.exception("the start of %d pushes was not told", len(deliveries))


def next_slice(prompt: deque[PushDelivery], others: deque[PushDelivery]) -> list[PushDelivery]:
    """Take the deliveries to push before the loop looks at its sockets again."""
    return [
        queue.popleft() for queue, most in ((prompt, SLICE), (others, LOW_SLICE)) for _ in range(min(most, len(queue)))
    ]
