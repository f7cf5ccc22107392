"""Build the guide from docs/ and the Markdown pages at the top: `make docs`, which installs what this needs.

    python docs/site/build.py pushhub/guide

The pages are copied first, so that their links, which are those of the repository, become links of the site. A link to
a file of code leads to a page that shows it. A block of `dot` becomes a picture. Sphinx then builds the English pages,
and those in Chinese beside them. Any warning is an error.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jieba
from navigation import CHINESE, CHINESE_FOLDER, FILES, PAGES
from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = DOCS / "site"

#: `](target#anchor)` of a link or a picture, or a whole block of code, in which brackets are no links.
LINK = re.compile(
    r"^(?P<fence>```+).*?^(?P=fence)[ \t]*$|(?P<image>!?)\[(?P<text>[^\]]*)\]"
    r"\((?!\w+:)(?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)",
    re.M | re.S,
)
#: A line that ends between two characters of Chinese, or after its punctuation. Browsers would show a space there.
CHINESE_BREAK = re.compile(
    r"(?<=[，。：；、）])\n(?=[^\s|#>*\-\d`]|`(?!`))|(?<=[\u4e00-\u9fff])\n(?=[\u3000-\u9fff\uff00-\uffef])"
)
DIAGRAM = re.compile(r"^```dot\n(?P<text>.*?)^```$", re.M | re.S)
#: The languages of files that are shown, by suffix. All others are offered for download.
LANGUAGES = {
    ".go": "go", ".java": "java", ".js": "javascript", ".json": "json", ".lua": "lua", ".py": "python",
    ".toml": "toml", ".txt": "text", ".yaml": "yaml", ".yml": "yaml",
}  # fmt: skip


@dataclass
class Source:
    """The pages of one language, in a folder for Sphinx."""

    folder: Path
    #: The pages of this language: their file in the repository, and their name on the site.
    pages: dict[Path, str]
    #: Pages that are on the site in the other language only.
    others: dict[Path, str] = field(default_factory=dict)
    _shown: set[Path] = field(default_factory=set)

    def write(self, sections: Iterable[tuple[str, list[str]]]) -> None:
        """Write every page, and the sections of the navigation into the first one."""
        for path, name in list(self.pages.items()):
            text = self._page(path.read_text(encoding="utf-8"), path)
            if name == "index":
                text += "".join(f"\n{toctree(caption, names)}" for caption, names in sections)
            self._write(f"{name}.md", text)

    def _page(self, text: str, path: Path) -> str:
        text = DIAGRAM.sub(lambda match: draw_diagram(match["text"]), CHINESE_BREAK.sub("", text))
        return LINK.sub(lambda match: match[0] if match["fence"] else self._link(match, path), text)

    def _link(self, match: re.Match[str], page: Path) -> str:
        target = (page.parent / match["target"]).resolve() if match["target"] else page
        target = DOCS / "index.md" if target == ROOT / "README.md" else target
        text, anchor = match["text"], match["anchor"] or ""
        here = Path(self.pages[page]).parent
        if target in self.pages:
            return f"[{text}]({os.path.relpath(self.pages[target], here)}.md{anchor})"
        if target in self.others:
            return f"[{text}](other:{self.others[target]}{anchor})"
        if target.is_dir():
            return text
        if target.suffix == ".md":
            return f"[{text}]({os.path.relpath(self._add(target), here)}.md{anchor})"
        return f"{match['image']}[{text}]({os.path.relpath(self._show(target), here)})"

    def _add(self, file: Path) -> str:
        """Return the name of a page that the navigation lacks, such as the README of a folder."""
        name = self.pages[file] = f"files/{file.relative_to(ROOT).with_suffix('')}"
        self._write(f"{name}.md", f"---\norphan: true\n---\n\n{self._page(file.read_text(encoding='utf-8'), file)}")
        return name

    def _show(self, file: Path) -> str:
        """Return the name of a page that shows a file of the repository, or of its copy."""
        relative = file.relative_to(ROOT)
        language = LANGUAGES.get(file.suffix, "")
        name = f"files/{relative}{'.md' if language else ''}"
        if file not in self._shown:
            self._shown.add(file)
            text = file.read_text(encoding="utf-8") if language else ""
            if language:
                self._write(name, f"---\norphan: true\n---\n\n# {relative}\n\n````{language}\n{text}````\n")
            else:
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.folder / name)
        return name

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def toctree(caption: str, names: list[str]) -> str:
    lines = [f":caption: {caption}", ":hidden:", "", *names]
    return "\n".join(["```{toctree}", *lines, "```", ""])


def draw_diagram(text: str) -> str:
    """Return an SVG that takes its colours from the page."""
    dot = Path(sys.executable).with_name("graphviz-pure")
    drawn = subprocess.run([dot, "-Tsvg"], input=text, capture_output=True, text=True, check=True).stdout
    svg = re.sub(r"\n+", "\n", drawn[drawn.index("<svg") :]).replace('"black"', '"currentColor"')
    return f'<figure class="diagram">\n{svg}</figure>'


def pages_of(sections: Iterable[tuple[str, list[str]]]) -> Iterator[str]:
    for _, names in sections:
        yield from names


def file_of(name: str) -> Path:
    """Return the file of an English page."""
    top = ROOT / FILES.get(name, f"{name.upper()}.md")
    return top if top.exists() else DOCS / f"{name}.md"


def meet_the_policy(folder: Path) -> None:
    """Remove what the console's Content-Security-Policy forbids: attributes `style`, and the compilation of a plural.

    site.css has what the styles did. Chinese, the one language with a catalog, has no plural.
    """
    for path in folder.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"""(<[a-z][^<>]*?) style="[^"]*\"""", r"\1", text), encoding="utf-8")
    for path in folder.rglob("doctools.js"):
        text, count = re.subn(r"new Function\(.*?\);", "() => 0;", path.read_text(encoding="utf-8"), flags=re.S)
        if count != 1:
            sys.exit("Sphinx' doctools.js has changed: look for `new Function` in it")
        path.write_text(text, encoding="utf-8")


def build(source: Path, target: Path, **settings: str) -> None:
    """Have Sphinx build the pages of a folder. Raises SystemExit at the first warning."""
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-c", str(SITE), "-d", f"{source}-cache"]
    options += [word for name, value in settings.items() for word in ("-D", f"{name.replace('__', '.')}={value}")]
    if status := build_main([*options, str(source), str(target)]):
        sys.exit(status)


def main(target: Path) -> None:
    english = {file_of(name): name for name in ["index", *pages_of(PAGES)]}
    chinese = {DOCS / CHINESE_FOLDER / f"{name}.md": name for name in ["index", *pages_of(CHINESE)]}
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Source(folder / "en", english).write(PAGES)
        build(folder / "en", target, language="en", html_context__translated=",".join(chinese.values()))
        jieba.setLogLevel(logging.WARNING)
        jieba.dt.tmp_dir = temporary
        Source(folder / "zh", chinese, english).write(CHINESE)
        messages = folder / "zh" / "locales" / "zh_CN" / "LC_MESSAGES"
        messages.mkdir(parents=True)
        shutil.copy(SITE / "sphinx.po", messages)
        build(folder / "zh", target / CHINESE_FOLDER, language="zh_CN")
    meet_the_policy(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
