"""The console is complete in Simplified Chinese: pages show no English except names and words of the API.

The same round of all pages checks their times, which have one format in every language.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.urls import reverse
from django.utils import translation

from pushhub.common.errors import InvalidArgument
from subscriptions.console.texts import _refusals, error_text
from subscriptions.models import Subscription, Topic
from tests.restapi import Api, root_client
from tests.tenants import TENANTS, World, addresses, world_of_tenants

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

ROOT, APPS = Path(__file__).parents[3], ("pushhub", "subscriptions", "deliveries")
#: Elements whose text is code or a name.
CODE = {"script", "style", "code", "pre", "kbd", "option", "title", "text"}
#: Attributes that a browser shows or reads out.
VISIBLE_ATTRIBUTES = {"title", "placeholder", "aria-label", "alt"}
#: Two English words in a row, or one that begins with a capital letter.
ENGLISH = re.compile(r"[A-Za-z][a-z]+(?: [a-z]+)+|\b[A-Z][a-z]{2,}\b")
#: Names of products, formats and standards, and words that are written in English in Chinese too.
NAMES = re.compile(
    r"PushHub|English|Google|Parquet|Redis|Spark|Celery|Flower|Avro|Protocol Buffer|Cloud|Pub/Sub|Content-Type|"
    r"Enter|Ctrl|Shift|Mac|Windows|Web|Command|Control|True|False|JSON|PEM|LDAP"
)

#: Not checked: answers that are no pages, a page of Django's whose help text is built before the language is known, and
#: the audit log, whose rows name kinds of resources in English.
SKIPPED = ("logout", "jsi18n", "autocomplete", "/password/", "/auditentry/")


#: A time in any form, and the only form that the console shows. The axis of a chart shows less, but it is SVG text.
ANY_TIME = re.compile(r"\d{1,2}:\d\d(?::\d\d)?|[ap]\.m\.|\d年|上午|下午")
CONSOLE_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})? UTC")


class Texts(HTMLParser):
    """The texts of a page that a reader sees or hears."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._code = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._code += tag in CODE or ("class", "mono") in attrs
        self.texts += [value for name, value in attrs if name in VISIBLE_ATTRIBUTES and value and tag != "option"]

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in CODE and self._code > 0

    def handle_data(self, data: str) -> None:
        if not self._code and data.strip():
            self.texts.append(" ".join(data.split()))


def english_in(page: str) -> set[str]:
    """Return the English texts of a page. Words with a slash, dot, hyphen, colon, at sign or tenant count as names."""
    english = set()
    for text in Texts(page).texts:
        words = " ".join(word for word in text.split() if not re.search(r"[/@_:.=-]|^\W*$", word.strip(".:,?!;()…")))
        if ENGLISH.search(NAMES.sub("", words)) and not any(tenant in text for tenant in TENANTS):
            english.add(text)
    return english


def malformed_times_in(page: str) -> set[str]:
    """Return the texts of a page with a time that lacks seconds or the zone, or has another form."""
    return {text for text in Texts(page).texts if ANY_TIME.search(CONSOLE_TIME.sub("", text))}


def test_times_of_another_form_are_detected() -> None:
    well_formed = "<td>2026-11-22 05:32:07 UTC</td><td>since 2026-11-22 05:32:07.123 UTC</td><text>05:32</text>"
    assert malformed_times_in(well_formed) == set()
    for time in ("2026-11-22 05:32", "2026-11-22 05:32:07", "2026-11-22T05:32:07Z", "Nov. 22, 2026, 5:32 a.m."):
        assert malformed_times_in(f"<td>{time}</td>") == {time}


def test_english_is_detected() -> None:
    assert english_in("<h1>Select a topic</h1>") == {"Select a topic"}
    assert english_in('<input placeholder="Search">') == {"Search"}
    assert english_in("<td>projects/shop/topics/orders</td><p>PushHub 正在运行</p>") == set()


def test_every_page_is_in_chinese_and_its_times_have_seconds_and_a_zone(redis_url: str) -> None:
    world: World = world_of_tenants()
    client = world.clients["superuser"]
    client.cookies["django_language"] = "zh-hans"
    english: dict[str, str] = {}
    times: dict[str, str] = {}
    pages = 0
    for address in addresses(world, "acme"):
        if any(word in address for word in SKIPPED):
            continue
        response = client.get(address, follow=True)
        if response.status_code == 200 and "html" in response.headers["Content-Type"]:
            pages += 1
            page = response.content.decode()
            english |= dict.fromkeys(english_in(page), address)
            times |= dict.fromkeys(malformed_times_in(page), address)
    assert pages > 60
    assert times == {}, "\n".join(f"{text!r} at {address}" for text, address in times.items())
    assert english == {}, "\n".join(f"{text!r} at {address}" for text, address in english.items())


def test_a_refusal_says_in_chinese_what_kind_it_is() -> None:
    """The API's own text follows, which has the details."""
    with translation.override("zh-hans"):
        assert error_text(InvalidArgument("nonsense")) == "有一个值不被接受： nonsense"


def test_a_refusal_without_values_is_said_in_chinese(redis_url: str) -> None:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/hello", {"topic": "projects/shop/topics/orders"})
    client = root_client(headers={"Accept-Language": "zh-hans"})
    topic = reverse("admin:deliveries_topic", args=[Topic.objects.get().pk])
    form = client.post(topic, {"text": "", "attributes": "{}"}).context["form"]
    assert form.errors == {"text": ["消息为空：请填写数据，或者至少一个属性。"]}
    seek = reverse("admin:deliveries_seek", args=[Subscription.objects.get().pk])
    [message] = client.post(seek, {"confirmed": "yes"}, follow=True).context["messages"]
    assert message.message == "请指定要跳转到的时间或快照。"


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("pause", "pull", "只有推送订阅可以暂停（resource=pull）。"),
        ("seek", "push", "找不到资源（resource=none）。"),
    ],
)
def test_a_refusal_with_values_is_said_in_chinese(redis_url: str, name: str, row: str, said: str) -> None:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": "projects/shop/topics/orders"})
    config = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}}
    api.create("subscriptions/push", {"topic": "projects/shop/topics/orders", **config})
    action = reverse(f"admin:deliveries_{name}", args=[Subscription.objects.get(subscription_id=row).pk])
    form = {"confirmed": "yes", "snapshot": "projects/shop/snapshots/none"}
    client = root_client(headers={"Accept-Language": "zh-hans"})
    [message] = client.post(action, form, follow=True).context["messages"]
    assert message.message == said


def test_each_refusal_of_the_catalogue_is_one_of_the_api() -> None:
    """A text that has changed would be English again."""
    sources = "".join(path.read_text("utf-8") for app in APPS for path in (ROOT / app).rglob("*.py"))
    code = re.sub(r'"\s+f?"', "", sources)
    refusals = _refusals("zh-hans")
    assert refusals
    assert [
        pattern.pattern
        for pattern, _ in refusals
        if not re.search(re.sub(r"\(\?P<\w+>\.\*\)", r"[^\\n]+", pattern.pattern), code)
    ] == []
