"""Calls of the REST API during a storm: they go on to the other web server, and again, until one answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import requests

#: How long an operator goes on trying.
PATIENCE_SECONDS = 90.0
TIMEOUT_SECONDS = 15.0


class Caller:
    """One caller, with a connection to each web server. A thread has its own."""

    def __init__(
        self, addresses: Sequence[str], *, first: int = 0, token: str = "", timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._urls = [f"http://{address}" for address in addresses]
        self._number = itertools.count(first)
        self._timeout_seconds = timeout_seconds
        self._session = requests.Session()
        self._session.trust_env = False
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        self._session.close()

    def once(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, number: int | None = None
    ) -> requests.Response:
        """Make one request to the next web server, or to that with a number. Raises requests.RequestException."""
        url = self._urls[(next(self._number) if number is None else number) % len(self._urls)]
        return self._session.request(method, url + path, json=body, timeout=self._timeout_seconds)

    def until_done(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, accept: Sequence[int] = (200,)
    ) -> requests.Response:
        """Repeat a request while no server gives an answer but that it is unavailable. Fail at any other answer."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        problem = ""
        while time.monotonic() < give_up:
            try:
                answer = self.once(method, path, body)
            except requests.RequestException as error:
                problem = repr(error)
            else:
                if answer.status_code in accept:
                    return answer
                problem = f"{answer.status_code} {answer.text[:500]}"
                if answer.status_code not in (500, 503, 504, 429, 409):
                    break
            time.sleep(0.2)
        raise AssertionError(f"{method} {path}: {problem}")
