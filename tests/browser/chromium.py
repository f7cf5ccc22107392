"""Open the console's pages in the system's Chromium, and collect their script errors and forbidden requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests import programs

#: The browser makes no requests by itself, and resolves no name except the server's.
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
SERVER_HOSTS = {"127.0.0.1", "localhost"}
#: This script runs before any script of the page, whose content security policy doesn't apply to it.
RECORD_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => window.violations.push(
    `${event.effectiveDirective} blocked ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber}`));
"""
#: Generous: the machine may be busy.
TIMEOUT_MS = 60_000


@dataclass
class Watched:
    """A page, and the problems it has had so far."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.base}{path}", wait_until="networkidle")
        self.check()
        return self.page

    def check(self) -> None:
        """Fail if a script failed, the content security policy blocked something, or a request went to another host."""
        problems = [*self.problems, *self.page.evaluate("window.violations")]
        assert problems == [], f"{self.page.url}: {problems}"


class Chromium:
    """A running browser. Each window has a profile of its own, without anything of the windows before it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    @contextmanager
    def __call__(
        self, base: str, *, theme: str = "light", locale: str = "en-US", width: int = 1280
    ) -> Iterator[Watched]:
        """Open a window on the server `base`."""
        profile = self._browser.new_context(
            color_scheme="dark" if theme == "dark" else "light",
            locale=locale,
            viewport={"width": width, "height": 900},
        )
        try:
            profile.set_default_timeout(TIMEOUT_MS)
            page = profile.new_page()
            watched = Watched(page, base)
            page.add_init_script(RECORD_VIOLATIONS)
            page.on("pageerror", lambda error: watched.problems.append(f"script: {error}"))
            page.on("console", lambda message: _record_error(watched, message))
            page.on("request", lambda request: _record_host(watched, request.url))
            yield watched
        finally:
            profile.close()


@contextmanager
def running() -> Iterator[Chromium]:
    """Start Chromium.

    Until the end, Playwright's event loop counts as running in this thread, so asyncio refuses to run another one.
    """
    executable = programs.chromium()
    if executable is None:
        pytest.skip("no Chromium: install it, for example by `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        try:
            yield Chromium(browser)
        finally:
            browser.close()


def _record_error(watched: Watched, message: ConsoleMessage) -> None:
    if message.type == "error":
        watched.problems.append(f"console: {message.text} {message.location.get('url')}")


def _record_host(watched: Watched, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and parts.hostname not in SERVER_HOSTS:
        watched.problems.append(f"request to {url}")
