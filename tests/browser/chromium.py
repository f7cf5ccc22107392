"""The system's Chromium, and what a page of ours must not do in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

#: Nothing that the browser does by itself, and no name but the server's own.
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
OUR_HOSTS = {"127.0.0.1", "localhost"}
#: Runs before any script of the page, and outside of its policy.
NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event => window.violations.push(
    `${event.effectiveDirective} blocked ${event.blockedURI} at ${event.sourceFile}:${event.lineNumber}`));
"""
#: Generous: the machine may be busy.
TIMEOUT_MS = 60_000


@dataclass
class Watched:
    """A page, and everything it did wrong so far."""

    page: Page
    base: str
    troubles: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.base}{path}", wait_until="networkidle")
        self.check()
        return self.page

    def check(self) -> None:
        """Fail if a script failed, the policy blocked something, or a request was meant for somebody else."""
        troubles = [*self.troubles, *self.page.evaluate("window.violations")]
        assert troubles == [], f"{self.page.url}: {troubles}"


@contextmanager
def chromium(base: str, *, theme: str = "light", locale: str = "en-US", width: int = 1280) -> Iterator[Watched]:
    """A window of Chromium at the server `base`.

    Its event loop runs in the test's thread, where Django's ORM then refuses to work: use it outside of this block.
    """
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium: install it, for example by `apt-get install chromium`")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        try:
            context = browser.new_context(
                color_scheme="dark" if theme == "dark" else "light",
                locale=locale,
                viewport={"width": width, "height": 900},
            )
            context.set_default_timeout(TIMEOUT_MS)
            page = context.new_page()
            watched = Watched(page, base)
            page.add_init_script(NOTE_VIOLATIONS)
            page.on("pageerror", lambda error: watched.troubles.append(f"script: {error}"))
            page.on("console", lambda said: _note_error(watched, said))
            page.on("request", lambda request: _note_host(watched, request.url))
            yield watched
        finally:
            browser.close()


def _note_error(watched: Watched, said: ConsoleMessage) -> None:
    if said.type == "error":
        watched.troubles.append(f"console: {said.text} {said.location.get('url')}")


def _note_host(watched: Watched, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("data", "blob") and parts.hostname not in OUR_HOSTS:
        watched.troubles.append(f"request to {url}")
