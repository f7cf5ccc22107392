"""Whole tasks in the console, in Chromium: creating a subscription, handling dead letters, the demo, a transform.

Each runs in English with the light theme on a desktop screen, and in Chinese with the dark theme on a phone. On each
page axe finds no serious violation, and nothing is wider than the screen.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.db import connection
from playwright.sync_api import Page, expect
from pytest_django.live_server_helper import LiveServer

from deliveries.deadletters import jobs
from deliveries.models import DeadLetter
from subscriptions.models import Project, Subscription, Topic
from tests.browser.chromium import TIMEOUT_MS, Chromium, Watched
from tests.browser.test_accessibility import SERIOUS
from tests.browser.test_console_pages import PASSWORD, sign_in
from tests.demoreceivers import stop_receiver
from tests.integration.deadletters.letters import create_letters, create_source, owed_to
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

#: Language, theme and width.
WINDOWS = [("en-US", "light", 1280), ("zh-CN", "dark", 390)]
ADD = "/admin/subscriptions/subscription/add/"
#: Fields that reach beyond the right edge of their card.
CUT_OFF = """
[...document.querySelectorAll("fieldset :is(input, select, textarea)")].filter(field =>
    field.getBoundingClientRect().right > field.closest("fieldset").getBoundingClientRect().right
).map(field => field.id)
"""


@pytest.fixture
def api(redis_url: str) -> Api:
    User.objects.create_superuser("admin", "admin@example.com", PASSWORD)
    api = Api()
    api.create("topics/orders")
    return api


def check_page(browser: Watched, width: int) -> None:
    """Fail unless the page fits the screen and axe finds no serious violation on it."""
    browser.check()
    page = browser.page
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    assert page.evaluate(CUT_OFF) == [], page.url
    serious = [
        (violation["id"], [node["html"][:200] for node in violation["nodes"][:3]])
        for violation in Axe().run(page).response["violations"]
        if violation["impact"] in SERIOUS
    ]
    # axe styles elements, which the policy of the page forbids. The browser reports that in a later task.
    page.evaluate("new Promise(done => setTimeout(() => { window.violations = []; done(); }))")
    browser.problems.clear()
    assert serious == [], page.url


def save(browser: Watched) -> None:
    with browser.page.expect_navigation(wait_until="networkidle"):
        browser.page.click("input[name=_save]")


def unfold(page: Page) -> None:
    """Open the sections of a form that are folded."""
    page.evaluate("for (const section of document.querySelectorAll('fieldset > details')) section.open = true")


@pytest.mark.parametrize("language, theme, width", WINDOWS)
def test_a_subscription_is_created_with_everything_it_needs(
    api: Api, live_server: LiveServer, chromium: Chromium, settings: Any, language: str, theme: str, width: int
) -> None:
    settings.ALLOW_PRIVATE, settings.ALLOWED_NETWORKS = False, ()
    english = language == "en-US"
    with chromium(live_server.url, theme=theme, locale=language, width=width) as browser:
        sign_in(browser)
        page = browser.open(ADD)
        check_page(browser, width)
        unfold(page)
        assert ("Delivery type" if english else "传送类型") in page.inner_text("#content")
        endpoint, exactly_once = page.locator("#id_push_endpoint"), page.locator("#id_enable_exactly_once_delivery")
        assert (endpoint.is_visible(), exactly_once.is_visible()) == (False, True)
        page.focus("input[name=delivery_type][value=pull]")
        page.keyboard.press("ArrowDown")
        assert (endpoint.is_visible(), exactly_once.is_visible()) == (True, False)
        endpoint.fill("https://10.1.2.3/push")
        page.keyboard.press("Tab")
        expect(page.locator(".field-note").first).to_contain_text("10.1.2.3", timeout=TIMEOUT_MS)
        page.select_option("#id_project", label="shop")
        page.fill("#id_subscription_id", "x")
        page.fill("#id_ack_deadline_seconds", "5")
        save(browser)
        errors = page.inner_text("#content")
        expected = ("Choose 10 to 600 seconds.", "Choose a topic, or name a new one.", "would not push to 10.1.2.3")
        if not english:
            expected = ("请选择 10 到 600 秒。", "请选择一个主题，或命名一个新主题。", "不会推送到 10.1.2.3")
        for text in expected:
            assert text in errors
        check_page(browser, width)
        assert page.locator("#id_ack_deadline_seconds").is_visible(), "a section with an error is open"
        unfold(page)
        page.fill("#id_subscription_id", "created")
        page.fill("#id_new_topic", "fresh")
        page.fill("#id_push_endpoint", "https://example.com/push")
        page.fill("#id_ack_deadline_seconds", "20")
        page.fill("#id_new_service_account", "newcomer")
        page.check("#id_grant_agent")
        page.fill("#id_new_dead_letter_topic", "fresh-letters")
        page.check("#id_grant_dead_letters")
        save(browser)
        page.wait_for_selector("ul.messagelist .success")
        browser.check()
        page.click(".field-page_link a")
        page.wait_for_selector(".tabs")
        page.click(".tabs a[href$='/change/']")
        page.wait_for_selector("#subscription_form")
        assert endpoint.input_value() == "https://example.com/push"
        assert exactly_once.is_visible() is False
        check_page(browser, width)
    row = Subscription.objects.select_related("topic", "dead_letter_topic").get()
    assert row.topic == Topic.objects.get(topic_id="fresh")
    assert row.dead_letter_topic == Topic.objects.get(topic_id="fresh-letters")
    assert row.oidc_service_account_email == "newcomer@shop.iam.gserviceaccount.com"


def run_dead_letter_jobs() -> None:
    """Run the dead-letter jobs to their end, as the maintenance worker does. Call it in a thread without event loop."""
    try:
        jobs.advance_jobs()
        jobs.advance_jobs()
    finally:
        connection.close()


@pytest.mark.parametrize("language, theme, width", WINDOWS)
def test_dead_letters_are_found_redriven_and_discarded(
    redis_url: str, live_server: LiveServer, chromium: Chromium, language: str, theme: str, width: int
) -> None:
    User.objects.create_superuser("admin", "admin@example.com", PASSWORD)
    api = Api()
    source = create_source(api)
    letters = create_letters(api, source, 4)
    name = "Dead letters" if language == "en-US" else "死信"
    with chromium(live_server.url, theme=theme, locale=language, width=width) as browser:
        sign_in(browser)
        page = browser.page
        if width < 1000:
            page.click("#menu-button")
        page.click(f"#console-nav >> text='{name}'")
        page.wait_for_selector("td.number")
        check_page(browser, width)
        page.click("#content-main a >> nth=0")
        page.wait_for_selector("input[name=letter]")
        check_page(browser, width)
        page.click(f"text='{letters[0]}'")
        page.wait_for_selector("pre.code")
        assert page.inner_text("pre.code") == "0"
        check_page(browser, width)
        page.go_back(wait_until="networkidle")
        page.focus(f"input[value='{letters[0]}']")
        page.keyboard.press("Space")
        page.focus("button[value=redrive]")
        page.keyboard.press("Enter")
        page.wait_for_selector("ul.messagelist .success")
        with ThreadPoolExecutor(max_workers=1) as executor:
            executor.submit(run_dead_letter_jobs).result()
        page.reload(wait_until="networkidle")
        page.check(f"input[value='{letters[1]}']")
        page.click("button[value=discard]")
        page.wait_for_selector("button[name=confirmed]")
        check_page(browser, width)
        page.click("button[name=confirmed]")
        page.wait_for_selector("ul.messagelist .success")
        with ThreadPoolExecutor(max_workers=1) as executor:
            executor.submit(run_dead_letter_jobs).result()
        page.reload(wait_until="networkidle")
        page.fill("#rate", "1000")
        page.click("button[value=redrive-all]")
        page.wait_for_selector("[data-live-source] [data-live=sentence]")
        check_page(browser, width)
        page.wait_for_load_state("networkidle")
        before = page.inner_text("[data-live=sentence]")
        with ThreadPoolExecutor(max_workers=1) as executor:
            executor.submit(run_dead_letter_jobs).result()
        expect(page.locator("[data-live=sentence]").first).not_to_have_text(before, timeout=TIMEOUT_MS)
        browser.check()
    assert sorted(owed_to("worker")) == ["0", "2", "3"]
    assert not DeadLetter.objects.exists()


@pytest.fixture
def stops_demo_receiver() -> Iterator[None]:
    yield
    stop_receiver()


@pytest.mark.usefixtures("stops_demo_receiver")
@pytest.mark.parametrize("language, theme, width", WINDOWS)
def test_the_demo_of_an_empty_console_shows_the_push_that_arrives(
    redis_url: str, live_server: LiveServer, chromium: Chromium, language: str, theme: str, width: int
) -> None:
    User.objects.create_superuser("admin", "admin@example.com", PASSWORD)
    Project.objects.create(project_id="shop")
    english = language == "en-US"
    with Worker(redis_url), chromium(live_server.url, theme=theme, locale=language, width=width) as browser:
        sign_in(browser)
        page = browser.page
        check_page(browser, width)
        name = (
            "Create a demo topic, subscription, receiver and message"
            if english
            else "创建演示主题、订阅、接收程序和消息"
        )
        page.get_by_role("button", name=name).click()
        # The page updates its table by itself, without a reload.
        rows = page.locator("[data-reload] tbody tr")
        expect(rows.first).to_contain_text("Hello from PushHub", timeout=TIMEOUT_MS)
        expect(rows).to_have_count(1)
        check_page(browser, width)
        caption = "What the receiver of the demo got" if english else "演示接收程序最近一小时收到的内容"
        expect(page.locator("[data-reload] caption")).to_contain_text(caption)
        page.get_by_role("link", name="Subscription" if english else "订阅", exact=True).last.click()
        expect(page.locator(".tabs")).to_be_visible(timeout=TIMEOUT_MS)
        check_page(browser, width)
    assert Subscription.objects.get().topic == Topic.objects.get(topic_id="demo")


@pytest.mark.parametrize("language, theme, width", WINDOWS)
def test_a_function_is_added_to_a_topic(
    api: Api, live_server: LiveServer, chromium: Chromium, language: str, theme: str, width: int
) -> None:
    topic = Topic.objects.get(topic_id="orders")
    with chromium(live_server.url, theme=theme, locale=language, width=width) as browser:
        sign_in(browser)
        page = browser.open(f"/admin/subscriptions/topic/{topic.pk}/change/")
        unfold(page)
        page.locator(".transform > summary").first.press("Enter")
        expect(page.locator("#id_transform_1_0")).to_be_visible()
        check_page(browser, width)
        page.fill("#id_transform_1_0", "redact")
        page.fill("#id_transform_1_1", "function redact(message) {")
        save(browser)
        expect(page.locator(".field-transform_1 .errorlist")).to_contain_text("SyntaxError")
        check_page(browser, width)
        page.fill("#id_transform_1_1", "function redact(message) {\n  return message;\n}")
        save(browser)
        page.wait_for_selector("ul.messagelist .success")
        page = browser.open(f"/admin/subscriptions/topic/{topic.pk}/change/")
        assert page.input_value("#id_transform_1_1") == "function redact(message) {\n  return message;\n}"


@pytest.mark.parametrize("language, theme, width", WINDOWS)
def test_everything_is_searched_and_the_keys_are_listed_by_keyboard(
    api: Api, live_server: LiveServer, chromium: Chromium, language: str, theme: str, width: int
) -> None:
    api.create("subscriptions/orders-eu", {"topic": "projects/shop/topics/orders"})
    with chromium(live_server.url, theme=theme, locale=language, width=width) as browser:
        sign_in(browser)
        page = browser.page
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        check_page(browser, width)
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).not_to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type("orders/?")
        assert page.locator("#console-search input").input_value() == "orders/?", "keys in a field are text"
        page.locator("#console-search input").fill("orders")
        with page.expect_navigation(wait_until="networkidle"):
            page.keyboard.press("Enter")
        check_page(browser, width)
        page.click("text='projects/shop/subscriptions/orders-eu'")
        expect(page.locator(".tabs")).to_be_visible(timeout=TIMEOUT_MS)
