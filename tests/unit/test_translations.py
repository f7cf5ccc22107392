"""Each text of the console has a translation, and an English term has one in Chinese."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.utils.translation.template import templatize

ROOT = Path(__file__).parents[2]
APPS = ("subscriptions", "deliveries")
CALLS = {"_", "gettext", "gettext_lazy", "ngettext"}
MARKED = re.compile(r"""(?:_|gettext|ngettext)\(u?(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")
#: Punctuation of English next to Chinese.
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff] ?[:,;!?()]|[:,;!?()][\u4e00-\u9fff]")
PLACEHOLDER = re.compile(r"%\(\w+\)[sd]|%s|%%|\{\w+\}")
#: A term of the glossary, as the console's texts have it, and its one translation.
TERMS = {
    r"ack deadline": "确认时限",
    r"nack|nacked|nacks": "否定确认",
    r"maintenance workers?": "维护工作进程",
    r"push workers?": "推送工作进程",
    r"regions?": "区域",
    r"undelivered": "未送达",
    r"service agent": "服务代理",
    r"audience": "受众群体",
    r"issuer": "颁发者",
    r"filter(?!s? it|s? each|ed)": "过滤器",
    r"journal(?! segments)": "事件日志",
    r"receiver": "接收程序",
    r"replays?": "重放",
    r"seek(?:ing)?": "跳转",
    r"ordering keys?": "排序键",
    r"dead-letter topic|dead letter topic": "死信主题",
}


def catalog(path: Path) -> dict[str, str]:
    """Return the texts of a compiled catalog with their translations; a plural by its singular."""
    with path.open("rb") as file:
        texts = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    return {key[0] if isinstance(key, tuple) else key: text for key, text in texts.items() if key}


OWN = {app: catalog(ROOT / app / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.mo") for app in APPS}


def texts_of_code(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield from (first.value for first in node.args[:1] if isinstance(first, ast.Constant))


def texts_of_template(path: Path) -> Iterator[str]:
    for match in MARKED.finditer(templatize(path.read_text(encoding="utf-8"))):
        yield ast.literal_eval(match["text"])


def texts() -> dict[str, str]:
    """Return each text that the console shows, with a file that has it."""
    found = {}
    for folder in (*APPS, "pushhub"):
        for path in (ROOT / folder).rglob("*.py"):
            found.update(dict.fromkeys(texts_of_code(path), str(path.relative_to(ROOT))))
        for path in (ROOT / folder).rglob("templates/**/*.html"):
            found.update(dict.fromkeys(texts_of_template(path), str(path.relative_to(ROOT))))
    return found


def test_each_text_of_the_console_is_translated() -> None:
    djangos = (Path(django.__file__).parent / "contrib").glob("*/locale/zh_Hans/LC_MESSAGES/django.mo")
    known = {text for texts in (*OWN.values(), *map(catalog, djangos)) for text in texts}
    shown = texts()
    assert len(shown) > 500
    assert {text: path for text, path in shown.items() if text not in known} == {}


def test_a_text_has_one_translation_in_both_apps() -> None:
    first, second = OWN.values()
    assert [(first[text], second[text]) for text in first.keys() & second.keys() if first[text] != second[text]] == []


@pytest.mark.parametrize("app", APPS)
def test_a_translation_has_the_values_of_its_text(app: str) -> None:
    values = {text: (PLACEHOLDER.findall(text), PLACEHOLDER.findall(shown)) for text, shown in OWN[app].items()}
    assert {text: found for text, found in values.items() if sorted(found[0]) != sorted(found[1])} == {}


@pytest.mark.parametrize("app", APPS)
def test_a_term_has_one_translation(app: str) -> None:
    wrong = [
        (text, shown)
        for text, shown in OWN[app].items()
        for term, chinese in TERMS.items()
        if re.search(rf"\b(?:{term})\b", text, re.IGNORECASE) and chinese not in shown
    ]
    assert wrong == []


@pytest.mark.parametrize("app", APPS)
def test_punctuation_at_chinese_is_chinese(app: str) -> None:
    assert [text for text in OWN[app].values() if HALF_WIDTH.search(text)] == []
