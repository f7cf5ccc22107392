"""The guide that `make docs` builds: its links, its version, where it loads from, and how PushHub serves it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from django.contrib.auth.models import User
from django.http.response import HttpResponseBase
from django.test import Client
from pytest_django.live_server_helper import LiveServer

from pushhub import __version__
from tests.browser.chromium import Chromium
from tests.docscripts import script_of

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "docs" / "site"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@dataclass
class Page(HTMLParser):
    """What a page of the guide names: the text that it shows, its anchors, what it links to and what it loads."""

    path: Path
    text: str = ""
    anchors: set[str] = field(default_factory=lambda: {""})
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    inline: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loaded += [values["src"]] if "src" in values else []
        self.loaded += [values["href"]] if tag == "link" else []
        if tag == "style" or (tag == "script" and "src" not in values) or "style" in values:
            self.inline.append(f"{tag} {values}")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide, built as `make docs` builds it. A warning would have failed that."""
    folder = tmp_path_factory.mktemp("guide") / "site"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    made = subprocess.run(
        ["make", "docs", f"GUIDE={folder}"], cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


@pytest.fixture
def served(site: Path, settings: Any) -> None:
    settings.GUIDE = site


def test_a_page_whose_link_leads_nowhere_is_not_built(site: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text("# A page\n\n[a part](#no-such-part)\n")
    script = "from build import *; build(Path(sys.argv[1]), Path(sys.argv[2]))"
    python = ROOT / ".venv" / "guide" / "bin" / "python"
    built = subprocess.run(
        [python, "-c", script, tmp_path / "source", tmp_path / "site"],
        cwd=BUILDER, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert built.returncode != 0
    assert "no-such-part" in built.stderr


def test_every_link_leads_to_a_page_and_to_its_part(pages: dict[Path, Page]) -> None:
    assert len(pages) > 30
    assert [broken for page in pages.values() for broken in broken_links(page, pages)] == []


def broken_links(page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        leads = target.exists() and (target not in pages or unquote(parts.fragment) in pages[target].anchors)
        if not leads:
            yield f"{page.path.name}: {link}"


def test_each_page_says_the_version(pages: dict[Path, Page]) -> None:
    assert [path for path, page in pages.items() if f"PushHub {__version__}" not in page.text] == []


def test_each_page_of_the_navigation_is_in_it(pages: dict[Path, Page], site: Path) -> None:
    listed = [name for _, names in script_of("site/navigation").PAGES for name in names]
    assert [name for name in listed if f"{name}.html" not in pages[site / "index.html"].links] == []
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert documents - set(listed) == set()


def test_no_page_loads_anything_from_another_host_or_runs_what_is_inline(pages: dict[Path, Page], site: Path) -> None:
    loaded = [(path, target) for path, page in pages.items() for target in page.loaded]
    assert len(loaded) > len(pages)
    assert [target for _, target in loaded if urlsplit(target).netloc] == []
    assert [line for page in pages.values() for line in page.inline] == []
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert re.findall(r"@import|url\(\s*['\"]?(?:https?:)?//", text) == [], style


def get(client: Client, path: str) -> HttpResponseBase:
    """Return an answer whose content was sent, so that its file is closed."""
    answer = client.get(path)
    if answer.streaming:
        list(answer)
    answer.close()
    return answer


def test_the_guide_is_served_with_the_consoles_headers(served: None) -> None:
    for path, kind in (("", "text/html"), ("settings.html", "text/html"), ("_static/site.css", "text/css")):
        answer = get(Client(), f"/docs/guide/{path}")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith(kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = get(Client(), "/docs/guide/").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert Client().get("/docs/guide").headers["Location"] == "/docs/guide/"


@pytest.mark.parametrize("path", ["../../manage.py", "%2e%2e/site.css", "nothing.html", "_static/", "x" * 300])
def test_what_is_not_in_the_guide_is_not_found(served: None, path: str) -> None:
    assert Client().get(f"/docs/guide/{path}").status_code == 404


def test_a_guide_that_is_not_built_says_how_to_build_it(settings: Any, tmp_path: Path) -> None:
    settings.GUIDE = tmp_path
    for path in ("", "push.html"):
        answer = Client().get(f"/docs/guide/{path}")
        assert answer.status_code == 404
        assert "<code>make docs</code> in a copy of PushHub" in answer.content.decode()


def test_the_guide_asks_for_the_consoles_login_in_production(served: None, settings: Any) -> None:
    settings.DEVELOPMENT, settings.ANONYMOUS = False, ""
    assert Client().get("/docs/guide/").headers["Location"].startswith("/admin/login/?next=/docs/guide/")
    staff = Client()
    staff.force_login(User.objects.create_user("ada", "ada@example.com", is_staff=True))
    assert get(staff, "/docs/guide/").status_code == 200


@pytest.mark.parametrize(
    ("folder", "words", "title"),
    [("", "exactly-once", "Wire rules: topics, subscriptions and their messages"), ("zh_Hans/", "死信", "控制台")],
)
def test_the_search_finds_a_page_without_another_host(
    served: None, chromium: Chromium, live_server: LiveServer, folder: str, words: str, title: str
) -> None:
    """The browser resolves no other name, and the policy's violations are collected."""
    with chromium(live_server.url) as browser:
        page = browser.open(f"/docs/guide/{folder}")
        page.fill(".sidebar-search", words)
        page.press(".sidebar-search", "Enter")
        page.wait_for_selector(f"#search-results li a:has-text({title!r})")
        browser.check()


def test_pages_in_chinese_have_no_space_where_a_line_ends_and_the_themes_words_in_chinese(site: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in (site / "zh_Hans").glob("*.html")]
    within_lines = [re.findall(r"[\u4e00-\u9fff，。：；、）]\n[\u4e00-\u9fff]", source) for source in sources]
    assert sources and not any(within_lines)
    assert any("下一页" in source for source in sources)
    assert not any(re.search(">(Next|Previous|Back to top)<", source) for source in sources)


def test_a_page_in_chinese_leads_to_its_english_one_and_back(
    served: None, chromium: Chromium, live_server: LiveServer
) -> None:
    with chromium(live_server.url) as browser:
        page = browser.open("/docs/guide/push.html")
        page.click(".other-language a")
        assert page.locator("h1").inner_text().startswith("推送")
        assert page.locator("html").get_attribute("lang") == "zh-CN"
        page.click(".other-language a")
        assert page.locator("h1").inner_text().startswith("Push")
        browser.check()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_page_has_the_readers_theme_and_fits_a_phone(
    served: None, chromium: Chromium, live_server: LiveServer, theme: str
) -> None:
    with chromium(live_server.url, theme=theme, width=390) as browser:
        for name in ("index", "settings", "spec", "compatibility"):
            page = browser.open(f"/docs/guide/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        red = page.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
        assert (red < 64) == (theme == "dark")
        page.locator(".theme-toggle-header .theme-toggle").click()
        browser.check()
