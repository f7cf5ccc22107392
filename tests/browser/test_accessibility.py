"""The console's pages fit on a phone and can be used with a keyboard and a screen reader, in both themes."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import DEFAULT_OPTIONS, Axe
from django.contrib.auth.models import User
from pytest_django.live_server_helper import LiveServer

from deliveries.deadletters.jobs import begin_job
from deliveries.models import DeadLetterJob, Message
from pushhub.common.principals import OPERATOR
from subscriptions.models import Subscription, Topic
from tests.browser.chromium import Chromium
from tests.browser.test_console_pages import PASSWORD, TOPIC, shop, sign_in
from tests.integration.deadletters.letters import create_letters, create_source
from tests.restapi import Api

__all__ = ["shop"]

pytestmark = pytest.mark.django_db(transaction=True)

SERIOUS = ("serious", "critical")
#: Axe's rules for each theme, which differ in their colours alone.
RULES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast", "link-in-text-block"]},
}
#: Links change their colours slowly.
END_TRANSITIONS = "document.getAnimations().filter(it => it instanceof CSSTransition).forEach(it => it.finish())"
DESK_PIXELS = 1280
PHONE_PIXELS = 390
#: The right edge of the rightmost visible text field of the content. Fields in a table may scroll with the table.
RIGHTMOST_EDGE = """Math.max(0, ...[...document.querySelectorAll(
    "#content input[type=text], #content input[type=search], #content select, #content textarea"
)].filter(field => field.checkVisibility() && !field.closest("table"))
.map(field => field.getBoundingClientRect().right))"""


def pages_of(subscription: Subscription) -> list[str]:
    topic = Topic.objects.get()
    return [
        "",
        "subscriptions/topic/",
        "subscriptions/subscription/",
        "subscriptions/subscription/add/",
        f"subscriptions/subscription/{subscription.pk}/change/",
        f"subscriptions/topic/{topic.pk}/overview/",
        f"subscriptions/topic/{topic.pk}/delete/",
        "subscriptions/schema/add/",
        "deliveries/delivery/search/?q=shop",
        "subscriptions/policy/",
        f"subscriptions/policy/of/{TOPIC}/",
        "subscriptions/auditentry/",
        f"deliveries/delivery/state/{subscription.pk}/",
        f"deliveries/delivery/waiting/{subscription.pk}/",
        "deliveries/delivery/",
        "deliveries/message/",
        f"deliveries/message/way/{Message.objects.get().pk}/",
        f"deliveries/segment/charts/{subscription.pk}/",
    ]


def test_axe_finds_nothing_serious(shop: Subscription, live_server: LiveServer, chromium: Chromium) -> None:
    pages = pages_of(shop)
    serious: dict[str, Any] = {}
    with chromium(live_server.url) as browser:
        sign_in(browser)
        for path in pages:
            page = browser.open(f"/admin/{path}")
            for theme, rules in RULES.items():
                page.emulate_media(color_scheme=theme)
                page.evaluate(END_TRANSITIONS)
                for violation in Axe().run(page, options=DEFAULT_OPTIONS | rules).response["violations"]:
                    if violation["impact"] in SERIOUS:
                        found = [node["html"][:200] for node in violation["nodes"][:3]]
                        serious[f"{path} {theme} {violation['id']}"] = found
            browser.problems.clear()  # axe styles elements, which the policy of the page forbids
    assert serious == {}


def test_no_page_is_wider_than_a_phone(shop: Subscription, live_server: LiveServer, chromium: Chromium) -> None:
    pages = pages_of(shop)
    with chromium(live_server.url, width=PHONE_PIXELS) as browser:
        sign_in(browser)
        for path in pages:
            page = browser.open(f"/admin/{path}")
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE_PIXELS, path
            assert page.evaluate(RIGHTMOST_EDGE) <= PHONE_PIXELS, path
            for menu in page.locator("#content details.menu").all():
                menu.locator("summary").click()
                box = menu.locator(".menu-items").bounding_box()
                assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE_PIXELS, (path, menu.inner_text())


@pytest.mark.parametrize("width", [DESK_PIXELS, PHONE_PIXELS])
def test_a_long_name_leaves_room_for_what_is_beside_it(
    shop: Subscription, live_server: LiveServer, chromium: Chromium, width: int
) -> None:
    Subscription.objects.update(subscription_id="s" * 255)
    Topic.objects.update(topic_id="t" * 255)
    with chromium(live_server.url, width=width) as browser:
        sign_in(browser)
        for path in ("subscriptions/topic/", "subscriptions/subscription/"):
            header = browser.open(f"/admin/{path}").locator("thead th").nth(2).bounding_box()
            assert header and header["x"] < width, path
        kind = browser.open("/admin/deliveries/delivery/search/?q=shop").locator("td").first.bounding_box()
        assert kind and kind["width"] > 80
        topics = browser.open("/admin/subscriptions/subscription/add/").locator("#id_topic").bounding_box()
        assert topics and topics["x"] + topics["width"] < width


def test_a_page_without_a_menu_has_the_width_of_a_phone(live_server: LiveServer, chromium: Chromium) -> None:
    with chromium(live_server.url, width=PHONE_PIXELS) as browser:
        page = browser.page
        page.goto(f"{live_server.url}/nothing")
        box = page.locator("#content").bounding_box()
        assert box and box["width"] == PHONE_PIXELS
        browser.problems.clear()  # the browser reports the 404


def test_no_list_covers_its_heading(shop: Subscription, live_server: LiveServer, chromium: Chromium) -> None:
    with chromium(live_server.url) as browser:
        sign_in(browser)
        for path in ("deliveries/message/", "deliveries/delivery/", "subscriptions/topic/"):
            page = browser.open(f"/admin/{path}")
            heading, rows = page.locator("#content > h1").bounding_box(), page.locator("#changelist").bounding_box()
            assert heading and rows
            assert heading["y"] + heading["height"] <= rows["y"], path


@pytest.mark.parametrize("width", [DESK_PIXELS, PHONE_PIXELS])
@pytest.mark.parametrize("language", ["en-US", "zh-CN"])
def test_tables_of_dead_letters_fit_into_their_frames(
    redis_url: str, live_server: LiveServer, chromium: Chromium, width: int, language: str
) -> None:
    User.objects.create_superuser("admin", "admin@example.com", PASSWORD)
    api = Api()
    source = create_source(api)
    for result in ("503", "connect_failed", "deadline_exceeded", "tls_failed"):
        create_letters(api, source, 2, result=result)
    Topic.objects.filter(topic_id="letters").update(topic_id="dead-letters-of-the-orders-of-a-shop-of-medium-size")
    Subscription.objects.filter(subscription_id="reader").delete()
    begin_job(source, action=DeadLetterJob.Action.REDRIVE, rate=10, caller=OPERATOR)
    with chromium(live_server.url, width=width, locale=language) as browser:
        sign_in(browser)
        for path in ("", f"of/{source.pk}/"):
            page = browser.open(f"/admin/deliveries/deadletter/{path}")
            frame = page.locator(".module:has(table)")
            inner, outer = frame.evaluate("element => [element.scrollWidth, element.clientWidth]")
            assert inner <= outer, path


def test_the_menu_of_a_phone_opens_and_closes_by_keyboard(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    with chromium(live_server.url, width=PHONE_PIXELS) as browser:
        sign_in(browser)
        page = browser.page
        sidebar = page.locator("#console-nav")
        assert not sidebar.is_visible()
        page.focus("#menu-button")
        page.keyboard.press("Enter")
        assert sidebar.is_visible()
        page.keyboard.press("Escape")
        assert not sidebar.is_visible()


def test_the_project_switcher_limits_the_list_and_keeps_the_page(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    with chromium(live_server.url) as browser:
        sign_in(browser)
        page = browser.open("/admin/subscriptions/topic/")
        page.focus("#project-switcher summary")
        page.keyboard.press("Enter")
        page.click("#project-switcher button[value=shop]")
        page.wait_for_load_state("networkidle")
        assert page.url.endswith("/admin/subscriptions/topic/")
        assert "shop" in page.inner_text("#project-switcher summary")
        browser.check()
