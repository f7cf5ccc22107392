"""Links between documents, citations of documents in code, and the anchors that both lead to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders whose files are checked, besides the files at the top.
FOLDERS = (".ci", "bench", "deliveries", "deploy", "docs", "pushhub", "subscriptions", "tests")
SUFFIXES = frozenset({".lua", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"})
NAMES = frozenset({"Dockerfile", "Makefile", "run"})
#: Folders of installed, compiled or downloaded files, which the repository doesn't have.
FOREIGN = frozenset({"__pycache__", "node_modules"})

CITATION = re.compile(r"\bdocs/(?P<name>[A-Za-z0-9_-]+\.md)(?:#(?P<anchor>[A-Za-z0-9_-]+))?")
#: `[text](target)`, and `[label]: target` at the start of a line.
LINK = re.compile(r"\]\(\s*(?P<inline>[^)\s]+)[^)]*\)|^\[[^\]]+\]:\s*(?P<reference>\S+)", re.M)
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?) *#*$", re.M)
EXPLICIT_ANCHOR = re.compile(r"""<a\s+(?:id|name)=["'](?P<anchor>[^"']+)["']""")
CODE_BLOCK = re.compile(r"^(?P<fence>```+|~~~+).*?^(?P=fence)[ \t]*$", re.M | re.S)
#: The path of a file as comments and documents write it: from the top, or from one of the folders in BASES.
FILE_PATH = re.compile(
    r"(?<![\w/.:~<>*{}-])(?P<path>(?:\.ci|[a-z]\w*)(?:/[\w-]+)*/[\w-]+\.(?:json|lua|md|py|toml|yml))\b(?!/)"
)
BASES = tuple(
    ROOT / name for name in ("", "deliveries", "subscriptions", "pushhub", "tests", "tests/integration", "tests/unit")
)
#: Documents that only the authors have; readers of the repository cannot open them.
UNAVAILABLE = re.compile(
    r"\b(?:DESIGN|SPARK|LESSONS|REVIEW|STYLE)\.md\b|\bpubsub-spec\b|\b[Tt]he seeds\b|\(seeds\b|\bfounding document"
)


def files_with_citations() -> list[Path]:
    """Return the repository's files that may cite a document."""
    paths = [path for path in ROOT.iterdir() if path.is_file()]
    paths += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(path for path in paths if _is_read(path))


def _is_read(path: Path) -> bool:
    is_text = path.suffix in SUFFIXES or path.name in NAMES
    return is_text and not FOREIGN & set(path.parts) and path.is_file()


def citations_broken(text: str) -> list[str]:
    """Return the citations of `docs/<name>.md` or `docs/<name>.md#<anchor>` that lead nowhere."""
    return [
        match[0]
        for match in CITATION.finditer(text)
        if not _leads_somewhere(ROOT / "docs" / match["name"], match["anchor"] or "")
    ]


def citations_unavailable(text: str) -> list[str]:
    """Return the words that cite a document which is not in the repository."""
    return UNAVAILABLE.findall(text)


def paths_broken(path: Path) -> list[str]:
    """Return the files that a file names by a path, and that don't exist."""
    named = [match["path"] for match in FILE_PATH.finditer(path.read_text(encoding="utf-8"))]
    return [name for name in named if not any((base / name).exists() for base in (*BASES, path.parent))]


def links_broken(path: Path) -> list[str]:
    """Return the relative links of a Markdown file that lead nowhere."""
    return [link for link in links_of(path) if not _link_leads_somewhere(path, link)]


def links_of(path: Path) -> Iterator[str]:
    """Yield the relative links of a Markdown file."""
    for match in LINK.finditer(without_code_blocks(path.read_text(encoding="utf-8"))):
        link = match["inline"] or match["reference"]
        if not re.match(r"[a-z]+:", link):
            yield link


def _link_leads_somewhere(path: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    return _leads_somewhere((path.parent / target).resolve() if target else path, anchor)


def _leads_somewhere(path: Path, anchor: str) -> bool:
    return path.exists() and (not anchor or anchor in anchors_of(path))


@cache
def anchors_of(path: Path) -> frozenset[str]:
    """Return the anchors of a Markdown file: those of its headings, as GitHub makes them, and explicit ones."""
    text = without_code_blocks(path.read_text(encoding="utf-8"))
    slugs = [slug(match["text"]) for match in HEADING.finditer(text)]
    counts: Counter[str] = Counter()
    anchors = {match["anchor"] for match in EXPLICIT_ANCHOR.finditer(text)}
    for name in slugs:
        anchors.add(f"{name}-{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return frozenset(anchors)


def slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def without_code_blocks(text: str) -> str:
    """Return Markdown without its fenced code, where brackets and hashes are neither links nor headings."""
    return CODE_BLOCK.sub("", text)
