"""The console in a real browser: its policy blocks nothing of its own, scripts work, no request leaves the machine."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.utils.safestring import mark_safe
from playwright.sync_api import expect
from pytest_django.live_server_helper import LiveServer

from deliveries.models import MetricMinute
from deliveries.rules.histogram import bucket_of
from deliveries.telemetry.counting.ledger import Partial, Sums, add_partials
from deliveries.telemetry.series.gauges import take_gauges
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription, Topic
from tests.browser.chromium import Chromium, Watched
from tests.lanes import note_maintenance
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

PASSWORD = "a password of some length"
TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def shop(redis_url: str) -> Subscription:
    """A subscription with five minutes of pushes, and a superuser called admin."""
    User.objects.create_superuser("admin", "admin@example.com", PASSWORD)
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200
    minute = utcnow().replace(second=0, microsecond=0)
    for minutes_ago in range(1, 6):
        for kind, code in (("ack", 204), ("remote_server_5xx", 503)):
            at = minute - timedelta(minutes=minutes_ago)
            key = ("projects/shop/subscriptions/push", "push", at, kind, code, "127.0.0.1")
            add_partials([Partial(kind, key, Sums("shop", 5, 50, 5000, 1000, {bucket_of(1000): 5}))], job="test")
    take_gauges()
    note_maintenance()
    return Subscription.objects.get()


def sign_in(browser: Watched) -> None:
    page = browser.open("/admin/")
    page.fill("#id_username", "admin")
    page.fill("#id_password", PASSWORD)
    page.click("[type=submit]")
    page.wait_for_selector("#user-tools")
    browser.check()


def test_every_page_of_the_console_opens_without_a_problem(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    topic = Topic.objects.get()
    admin.autodiscover()
    lists = [f"{model._meta.app_label}/{model._meta.model_name}/" for model in admin.site._registry]
    pages = [
        *lists,
        f"subscriptions/topic/{topic.pk}/change/",
        f"subscriptions/topic/{topic.pk}/history/",
        f"subscriptions/topic/{topic.pk}/delete/",
        f"subscriptions/subscription/{shop.pk}/change/",
        "subscriptions/subscription/add/",
        "subscriptions/schema/add/",
        f"subscriptions/topic/{topic.pk}/overview/",
        "deliveries/delivery/search/?q=projects",
        f"subscriptions/policy/of/{TOPIC}/",
        "subscriptions/group/add/",
        f"deliveries/delivery/state/{shop.pk}/",
        "deliveries/delivery/rejected/",
        "deliveries/publishjob/replay/",
        "auth/user/add/",
        "password_change/",
    ]
    with chromium(live_server.url) as browser:
        sign_in(browser)
        for path in pages:
            browser.open(f"/admin/{path}")
            assert browser.page.locator("#content").count() == 1, path


def test_the_scripts_of_the_console_work(shop: Subscription, live_server: LiveServer, chromium: Chromium) -> None:
    with chromium(live_server.url) as browser:
        sign_in(browser)
        page = browser.page
        before = page.evaluate("document.documentElement.dataset.theme")
        page.click("button.theme-toggle >> visible=true")
        assert page.evaluate("document.documentElement.dataset.theme") != before
        browser.open("/admin/subscriptions/perimeter/add/")
        page.click("#id_projects_from option")
        page.click("#id_projects_add, .selector-add >> visible=true")
        assert page.locator("#id_projects_to option").count() == 1
        browser.open("/admin/subscriptions/topic/")
        page.click("#action-toggle")
        assert page.locator("tr.selected").count() == 1
        browser.check()


def test_a_subscriptions_page_updates_without_a_reload(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    address = f"/admin/deliveries/delivery/state/{shop.pk}/"
    with chromium(live_server.url) as browser:
        sign_in(browser)
        page = browser.open(address)
        assert page.inner_text("[data-live-html=findings]").startswith("Redis knows of no push worker")
        second_tab = page.context.new_page()
        second_tab.goto(f"{browser.base}{address}")
        second_tab.click("text=Pause")
        second_tab.wait_for_selector("text=Paused. Messages wait")
        page.bring_to_front()
        page.wait_for_selector("text=Paused by")
        assert page.locator(".status.warn >> visible=true").count() == 1
        browser.check()


@pytest.mark.parametrize("path", ["deliveries/delivery/state/{pk}/", "deliveries/pipelinerun/", ""])
def test_a_page_that_is_not_renewed_any_more_says_so(
    shop: Subscription, live_server: LiveServer, chromium: Chromium, path: str
) -> None:
    with chromium(live_server.url) as browser:
        browser.page.clock.install()
        sign_in(browser)
        page = browser.open(f"/admin/{path.format(pk=shop.pk)}")
        assert not page.locator("#stale").is_visible()
        # When the session ends, so that each look leads to the login
        page.context.clear_cookies()
        with page.expect_response("**/login/**"):
            page.clock.run_for(2000)
        page.clock.run_for(8000)
        with page.expect_response("**/login/**"):
            page.clock.run_for(2000)
        expect(page.locator("#stale")).to_contain_text(re.compile(r"not been renewed since 20.* UTC\. Reload it\."))
        browser.check()


def test_charts_have_colours_of_their_own_in_each_theme(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    colours_by_theme = {}
    for theme in ("light", "dark"):
        with chromium(live_server.url, theme=theme) as browser:
            sign_in(browser)
            page = browser.open(f"/admin/deliveries/segment/charts/{shop.pk}/")
            colours_by_theme[theme] = [
                page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{style}")
                for selector, style in (
                    (".chart rect", "fill"),
                    (".chart circle.line", "fill"),
                    (".legend i", "background"),
                )
            ]
    assert colours_by_theme["light"] != colours_by_theme["dark"]
    for colours in colours_by_theme.values():
        assert all(colour not in ("rgb(0, 0, 0)", "none") and "rgba(0, 0, 0, 0)" not in colour for colour in colours)


@pytest.mark.parametrize("language", ["en-US", "zh-Hans"])
def test_charts_show_their_values_and_zoom_by_pointer_and_keyboard(
    shop: Subscription, live_server: LiveServer, chromium: Chromium, language: str
) -> None:
    pushed_at = int(MetricMinute.objects.latest("at").at.timestamp())
    with chromium(live_server.url, locale=language) as browser:
        sign_in(browser)
        page = browser.open(f"/admin/deliveries/segment/charts/{shop.pk}/")
        plot = page.locator(".plot").first
        assert plot.locator(".slots rect").count() == 60
        plot.locator(f"rect[data-at='{pushed_at}']").hover()
        readout = page.locator(".readout").first.inner_text()
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:00 UTC · ack: 5 · remote_server_5xx: 5$", readout)
        assert page.locator("rect.chosen").count() == page.locator(".plot").count(), "all charts show the same time"

        plot.focus()
        last_at = int(str(plot.locator(".slots rect").last.get_attribute("data-at")))
        page.keyboard.press("End")
        for _ in range((last_at - pushed_at) // 60):
            page.keyboard.press("ArrowLeft")
        assert "UTC, ack: 5" in str(plot.get_attribute("aria-valuetext"))
        page.keyboard.press("End")
        for _ in range(19):
            page.keyboard.press("Shift+ArrowLeft")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert "start=" in page.url
        assert page.locator(".plot").first.locator(".slots rect").count() == 20
        browser.check()

        slots = page.locator(".plot").first.locator(".slots rect")
        first, last = (slots.nth(place).bounding_box() for place in (7, 19))
        assert first and last
        page.mouse.move(first["x"] + 2, first["y"] + 9)
        page.mouse.down()
        page.mouse.move(last["x"] + 2, last["y"] + 9)
        with page.expect_navigation():
            page.mouse.up()
        assert page.locator(".plot").first.locator(".slots rect").count() == 13
        browser.check()


def test_the_documentation_of_the_api_can_be_read_and_tried(
    shop: Subscription, live_server: LiveServer, chromium: Chromium
) -> None:
    with chromium(live_server.url) as browser:
        page = browser.open("/docs")
        page.wait_for_selector(".opblock")
        assert page.locator(".opblock").count() > 30
        page.click("#operations-projects-projects_list .opblock-summary-control")
        page.click("#operations-projects-projects_list .try-out__btn")
        page.click("#operations-projects-projects_list .execute")
        page.wait_for_selector("#operations-projects-projects_list .live-responses-table")
        assert "shop" in page.inner_text("#operations-projects-projects_list .live-responses-table")
        browser.check()


def test_an_injected_script_does_not_run(
    shop: Subscription, live_server: LiveServer, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a text were ever shown unescaped, the content security policy would still stop its scripts."""
    attack = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 2'>"
    monkeypatch.setattr(Subscription, "__str__", lambda row: mark_safe(attack))
    with chromium(live_server.url) as browser:
        sign_in(browser)
        browser.page.goto(
            f"{browser.base}/admin/subscriptions/subscription/{shop.pk}/change/", wait_until="networkidle"
        )
        assert attack.partition("<img")[0] in browser.page.content()
        assert browser.page.evaluate("window.attacked") is None
        blocked: list[Any] = browser.page.evaluate("window.violations")
        assert any("script-src" in violation for violation in blocked)
