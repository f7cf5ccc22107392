"""docs/api.md is the output of its script."""

from __future__ import annotations

from tests.docscripts import ROOT, script_of


def test_the_page_is_what_the_script_writes() -> None:
    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == script_of("api").page()
