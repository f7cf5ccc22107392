"""Takes the screenshots in docs/screenshots/ of a PushHub that runs, such as that of `make up`.

    .venv/bin/python docs/screenshots.py --user admin --password-file password.txt

It needs the test tools (`make install-tests`), a Chromium on the PATH and, for the pictures in Chinese, a font with
Chinese characters (Debian: `apt-get install fonts-wqy-zenhei`). The pages show what the deployment holds, so take them
of one with a few topics, message transforms, dead letters, a schema and a subscription whose endpoint fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import programs

FOLDER = Path(__file__).parent / "screenshots"
HEIGHT = 800
DESK, PHONE = 1280, 390
THEMES = ("light", "dark")
LANGUAGES = ("en-US", "zh-CN")


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture: a page, and how its reader looks at it."""

    page: str
    theme: str = "light"
    width: int = DESK
    language: str = "en-US"

    @property
    def name(self) -> str:
        parts = [
            self.page,
            *(["dark"] if self.theme == "dark" else []),
            *(["phone"] if self.width == PHONE else []),
            *(["zh"] if self.language == "zh-CN" else []),
        ]
        return "-".join(parts) + ".png"


#: The pictures in docs/screenshots/, which are few so that the repository stays small.
PICTURES = (
    Picture("overview"),
    Picture("overview", language="zh-CN"),
    Picture("subscriptions"),
    Picture("subscription", theme="dark"),
    Picture("subscription", width=PHONE),
    Picture("charts"),
    Picture("dead-letters"),
    Picture("transforms", theme="dark"),
    Picture("message", width=PHONE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--flower-url", default="http://127.0.0.1:5555")
    parser.add_argument("--user", default="admin")
    parser.add_argument("--password-file", type=Path, required=True)
    parser.add_argument(
        "--all-to", type=Path, metavar="FOLDER", help="take each page in all themes, widths and languages instead"
    )
    options = parser.parse_args()
    password = options.password_file.read_text(encoding="utf-8").strip()
    folder: Path = options.all_to or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    everything = (
        Picture(page, theme, width, language)
        for page in PAGES
        for theme in THEMES
        for width in (DESK, PHONE)
        for language in LANGUAGES
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=programs.chromium(), args=["--no-sandbox"])
        state = _signed_in(browser, options.url, options.user, password)
        for picture in everything if options.all_to else PICTURES:
            context = browser.new_context(
                viewport={"width": picture.width, "height": HEIGHT},
                color_scheme="dark" if picture.theme == "dark" else "light",
                locale=picture.language,
                storage_state=state,
            )
            page = context.new_page()
            PAGES[picture.page](page, options.flower_url if picture.page == "flower" else options.url)
            if options.all_to:
                # A window as high as the page. Chromium's own picture of a full page cuts what sticks to the window.
                height = page.evaluate("document.documentElement.scrollHeight")
                page.set_viewport_size({"width": picture.width, "height": max(height, HEIGHT)})
            page.screenshot(path=folder / picture.name)
            context.close()
        browser.close()


def _signed_in(browser: Any, url: str, user: str, password: str) -> Any:
    """Sign in once and return the browser's cookies."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/admin/")
    page.fill("#id_username", user)
    page.fill("#id_password", password)
    page.click("[type=submit]")
    page.wait_for_selector("#user-tools")
    state = context.storage_state()
    context.close()
    return state


def _overview(page: Page, url: str) -> None:
    page.goto(f"{url}/admin/", wait_until="networkidle")


def _subscription(page: Page, url: str) -> None:
    """Open the page of the endpoint that fails worst, else of the first subscription."""
    _overview(page, url)
    failing = page.locator("[data-live-part] th[scope=row] a")
    if failing.count():
        failing.first.click()
    else:
        page.goto(f"{url}/admin/subscriptions/subscription/")
        page.locator(".field-page_link a").first.click()
    page.wait_for_selector("[data-live-html=findings]")


def _charts(page: Page, url: str) -> None:
    _subscription(page, url)
    page.click(".tabs a[href*='/charts/']")
    page.wait_for_load_state("networkidle")


def _dead_letters(page: Page, url: str) -> None:
    """Open the dead letters of the first subscription that has any."""
    page.goto(f"{url}/admin/deliveries/deadletter/", wait_until="networkidle")
    source = page.locator("#content-main tbody a").first
    if source.count():
        source.click()
        page.wait_for_load_state("networkidle")


def _transforms(page: Page, url: str) -> None:
    """Open the form of a topic, at its message transforms."""
    page.goto(f"{url}/admin/subscriptions/topic/", wait_until="networkidle")
    page.locator(".field-page_link a").first.click()
    page.click(".tabs a[href$='/change/']")
    page.wait_for_load_state("networkidle")
    page.evaluate("for (const section of document.querySelectorAll('fieldset > details')) section.open = true")
    function = page.locator(".transform").first
    function.wait_for()
    if function.get_attribute("open") is None:
        function.locator("summary").click()
    function.scroll_into_view_if_needed()


def _message(page: Page, url: str) -> None:
    """Open the way of the newest message that is kept."""
    page.goto(f"{url}/admin/deliveries/message/", wait_until="networkidle")
    page.locator(".field-way a").first.click()
    page.wait_for_selector("#content-main")


def _flower(page: Page, url: str) -> None:
    """Open Flower's list of attempts, which has no Chinese."""
    page.goto(f"{url}/tasks", wait_until="networkidle")
    page.fill("input[type=search]", "subscriptions")
    page.wait_for_load_state("networkidle")


def _opens(path: str) -> Callable[[Page, str], None]:
    """Return a function that opens the page of a path of the console."""

    def show(page: Page, url: str) -> None:
        page.goto(f"{url}/admin/{path}", wait_until="networkidle")

    return show


PAGES: dict[str, Callable[[Page, str], None]] = {
    "overview": _overview,
    "subscription": _subscription,
    "charts": _charts,
    "dead-letters": _dead_letters,
    "transforms": _transforms,
    "message": _message,
    "flower": _flower,
    "topics": _opens("subscriptions/topic/"),
    "subscriptions": _opens("subscriptions/subscription/"),
    "new-subscription": _opens("subscriptions/subscription/add/"),
    "messages": _opens("deliveries/message/"),
    "waiting-deliveries": _opens("deliveries/delivery/"),
    "all-dead-letters": _opens("deliveries/deadletter/"),
    "schemas": _opens("subscriptions/schema/"),
    "new-schema": _opens("subscriptions/schema/add/"),
    "service-accounts": _opens("subscriptions/serviceaccount/"),
    "account-keys": _opens("subscriptions/serviceaccountkey/"),
    "policies": _opens("subscriptions/policy/"),
    "audit-log": _opens("subscriptions/auditentry/"),
    "segments": _opens("deliveries/segment/"),
    "pipeline": _opens("deliveries/pipelinerun/"),
}

if __name__ == "__main__":
    main()
