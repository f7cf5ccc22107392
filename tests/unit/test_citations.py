"""Citations of documents and links between them lead somewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.documents import (
    ROOT,
    anchors_of,
    citations_broken,
    citations_unavailable,
    files_with_citations,
    links_broken,
    paths_broken,
    slug,
    without_code_blocks,
)

#: These files contain examples of forbidden citations and of file names.
EXAMPLES = {Path(__file__), ROOT / "tests" / "documents.py", ROOT / "tests" / "unit" / "test_choosing_tests.py"}
FILES = [path for path in files_with_citations() if path not in EXAMPLES]
MARKDOWN = [path for path in FILES if path.suffix == ".md"]
SPECIFICATION = sorted((ROOT / "docs").glob("spec*.md"))
GLOSSARY = ROOT / "docs" / "glossary.md"


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_kind_of_file_is_checked() -> None:
    names = {relative(path) for path in FILES}
    assert {"Makefile", "pyproject.toml", "docker-compose.yml", "manage.py", ".ci/run", "CONTRIBUTING.md"} <= names
    assert {Path(name).suffix for name in names} >= {".py", ".lua", ".md", ".toml", ".yml"}
    assert len(FILES) > 300


def test_every_citation_of_a_document_leads_somewhere() -> None:
    broken = {relative(path): citations_broken(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: citations for path, citations in broken.items() if citations} == {}


def test_no_document_is_cited_that_the_repository_does_not_have() -> None:
    unavailable = {relative(path): citations_unavailable(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: citations for path, citations in unavailable.items() if citations} == {}


def test_every_file_that_is_named_by_its_path_exists() -> None:
    missing = {relative(path): paths_broken(path) for path in FILES}
    assert {path: names for path, names in missing.items() if names} == {}


@pytest.mark.parametrize("path", MARKDOWN, ids=relative)
def test_every_link_of_a_document_leads_somewhere(path: Path) -> None:
    assert links_broken(path) == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("see docs/spec-delivery.md#push-window.", []),
        ("`docs/settings.md`", []),
        ("docs/spec.md#push-windows", ["docs/spec.md#push-windows"]),
        ("(docs/nowhere.md, docs/nowhere.md#x)", ["docs/nowhere.md", "docs/nowhere.md#x"]),
    ],
)
def test_a_citation_that_leads_nowhere_is_found(text: str, broken: list[str]) -> None:
    assert citations_broken(text) == broken


def test_a_file_that_does_not_exist_is_found(tmp_path: Path) -> None:
    comment = tmp_path / "module.py"
    comment.write_text("# push/worker.py, deliveries/backlog/fetch.lua, push/nobody.py, https://x.example/a/b.py\n")
    assert paths_broken(comment) == ["push/nobody.py"]


@pytest.mark.parametrize(
    "text", ["(DESIGN.md, section 2)", "pubsub-spec.md, section 1.4", "LESSONS.md", "as the seeds have it", "REVIEW.md"]
)
def test_a_citation_of_an_unavailable_document_is_found(text: str) -> None:
    assert len(citations_unavailable(text)) == 1


def test_docs_design_md_is_available() -> None:
    assert citations_unavailable("docs/design.md#layers, SECURITY.md, over several seeds") == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "# A page\n\n## What `it` is\n\n[a](#what-it-is) [b](#what-is-it) [c](other.md) [d](https://x.example)\n"
        "[e]: page.md#a-page\n[f]: page.md#b-page\n\n```sh\n# [g](nothing.md)\n```\n"
    )
    assert links_broken(document) == ["#what-is-it", "other.md", "page.md#b-page"]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Push window", "push-window"),
        ("What `it` is: a test", "what-it-is-a-test"),
        ("The [push](push.md) client", "the-push-client"),
    ],
)
def test_headings_have_githubs_anchors(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


def test_a_repeated_heading_has_two_anchors(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text('# A\n\n# A\n\n<a id="b"></a>\n')
    assert anchors_of(document) == {"a", "a-1", "b"}


def test_every_rule_of_the_specification_has_an_anchor_of_its_own_and_a_source() -> None:
    pages = [without_code_blocks(path.read_text(encoding="utf-8")) for path in SPECIFICATION]
    headings = [heading for page in pages for heading in re.findall(r"^#+ (.+)$", page, re.M)]
    assert [heading for heading, count in Counter(headings).items() if count > 1] == []
    before_the_lists = [re.split(r"^## Unsupported parts", page, flags=re.M)[0] for page in pages]
    rules = [rule for page in before_the_lists for rule in re.split(r"^### ", page, flags=re.M)[1:]]
    assert len(rules) > 50
    assert [rule.splitlines()[0] for rule in rules if not re.search(r"^Source: \S", rule, re.M)] == []


def test_the_glossary_defines_each_term_once() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    terms = [term for names in re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.M) for term in names.split(", ")]
    assert len(terms) > 40
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert terms == sorted(terms, key=str.lower)
