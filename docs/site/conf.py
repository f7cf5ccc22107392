"""Sphinx' settings for the guide. build.py gives the language and the pages."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from sphinx.search.zh import SearchChinese

from pushhub import __version__

#: Sphinx calls the stemmer of its script by this name, and the script has English's.
SearchChinese.language_name = "English"

project = "PushHub"
html_title = f"PushHub {__version__}"
extensions = ["myst_parser", "sphinx_copybutton"]
templates_path = ["templates"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = html_logo = "../../subscriptions/static/subscriptions/icon.svg"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/languages.html",
        "sidebar/scroll-end.html",
    ]
}
#: The pages that are in both languages.
html_context = {"translated": ""}
#: Words that the search in Chinese has to know.
html_search_options = {"dict": str(Path(__file__).with_name("words.txt"))}
html_use_index = False
html_show_sourcelink = html_copy_source = False
html_show_copyright = html_show_sphinx = False

myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "other": {"url": "../{{path}}.html#{{fragment}}"}}
#: DuckDB's SQL is no SQL to the highlighter.
suppress_warnings = ["misc.highlighting_failure"]
#: Commands are copied without what they print.
copybutton_exclude = ".linenos, .gp, .go"
