"""Commits requests of many threads together: SQLite has a single writer, and each commit waits for the disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Request = TypeVar("Request")
Result = TypeVar("Result")

#: Requests that one transaction stores at most: the first of them waits for the last.
GROUP_SIZE = 32


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Request, Result]):
    request: Request
    result: Result | None = None
    error: Exception | None = None
    is_done: bool = False


class GroupCommit(Generic[Request, Result]):
    """Requests of threads that wait for the same lock are committed together, by the first of them to get it.

    `commit` stores requests in one transaction, all or none, and returns a result for each. A group with more than one
    request weighs at most `most` by `weigh`, because other writers wait for its transaction.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[Request]], list[Result]],
        *,
        weigh: Callable[[Request], int] = lambda _: 0,
        most: int = 0,
    ) -> None:
        self._commit = commit
        self._weigh = weigh
        self._most = most
        self._waiting: deque[_Waiting[Request, Result]] = deque()
        self._leading = threading.Lock()

    def commit(self, request: Request) -> Result:
        """Return once the request is committed; raise the error that prevented it."""
        mine: _Waiting[Request, Result] = _Waiting(request)
        self._waiting.append(mine)
        while not mine.is_done:
            with self._leading:
                if not mine.is_done:
                    self._lead()
        if mine.error is not None:
            raise mine.error
        assert mine.result is not None
        return mine.result

    def _lead(self) -> None:
        group = self._next_group()
        try:
            if not self._commit_group(group):
                # A single request may be at fault, and the others must not fail with it.
                for waiting in group:
                    self._commit_group([waiting])
        finally:
            # Whatever ends this thread, the others go on without it.
            self._waiting.extendleft(waiting for waiting in reversed(group) if not waiting.is_done)

    def _next_group(self) -> list[_Waiting[Request, Result]]:
        """Take the requests that came first; only the thread that leads removes any."""
        group = [self._waiting.popleft()]
        weight = self._weigh(group[0].request)
        while self._waiting and len(group) < GROUP_SIZE:
            weight += self._weigh(self._waiting[0].request)
            if weight > self._most:
                break
            group.append(self._waiting.popleft())
        return group

    def _commit_group(self, group: Sequence[_Waiting[Request, Result]]) -> bool:
        """Return False if a group of several failed, when it isn't known which of them is at fault."""
        try:
            results = self._commit([waiting.request for waiting in group])
        except Exception as error:
            if len(group) > 1:
                return False
            group[0].error = error
            group[0].is_done = True
            return True
        for waiting, result in zip(group, results, strict=True):
            waiting.result = result
            waiting.is_done = True
        return True
