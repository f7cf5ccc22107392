"""Takes the screenshots in docs/screenshots/ of a PushHub that runs, such as that of `make up`.

    .venv/bin/python docs/screenshots.py --user admin --password-file password.txt

It needs the test tools (`make install-tests`) and a Chromium on the PATH. The pages show what the deployment holds, so
take them of one with a few topics and with a subscription whose endpoint fails.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent / "screenshots"
WIDTH, HEIGHT = 1100, 640
PHONE_WIDTH = 390


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--user", default="admin")
    parser.add_argument("--password-file", type=Path, required=True)
    options = parser.parse_args()
    password = options.password_file.read_text(encoding="utf-8").strip()
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        state = _signed_in(browser, options.url, options.user, password)
        for name, theme, width in (
            ("overview", "light", WIDTH),
            ("subscription-dark", "dark", WIDTH),
            ("subscription-phone", "light", PHONE_WIDTH),
        ):
            size: Any = {"width": width, "height": HEIGHT}
            context = browser.new_context(viewport=size, color_scheme=theme, locale="en-US", storage_state=state)  # type: ignore[arg-type]
            page = context.new_page()
            _open(page, options.url, is_overview=name == "overview")
            page.screenshot(path=FOLDER / f"{name}.png")
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


def _open(page: Page, url: str, *, is_overview: bool) -> None:
    """Open the overview, or the page of the endpoint that fails worst, else of the first subscription."""
    page.goto(f"{url}/admin/", wait_until="networkidle")
    if is_overview:
        return
    failing = page.locator(".status.bad a")
    if failing.count():
        failing.first.click()
    else:
        page.goto(f"{url}/admin/subscriptions/subscription/")
        page.locator(".field-page_link a").first.click()
    page.wait_for_selector("[data-live=sentence]")


if __name__ == "__main__":
    main()
