"""docs/compatibility.md is what its script makes of the code as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from subscriptions import assign

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compatibility", ROOT / "docs" / "compatibility.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_the_one_that_the_script_makes(script: ModuleType) -> None:
    committed = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert committed == script.page(), "run `python docs/compatibility.py`"


def test_a_field_that_is_refused_is_not_called_done(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "| `Topic.messageStoragePolicy` | 3 | {} |"
    assert row.format("done") in script.page()
    refuse = assign._unsupported("messageStoragePolicy")
    monkeypatch.setitem(assign.TOPIC_FIELDS, "messageStoragePolicy", refuse)  # type: ignore[misc]
    assert row.format("refused: UNIMPLEMENTED") in script.page()


def test_a_method_without_a_route_is_not_called_done(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    served = script.operations()
    gone = ("POST", "v1/projects/*/topics/*:publish")
    assert gone in served
    monkeypatch.setattr(script, "operations", lambda: {key: one for key, one in served.items() if key != gone})
    assert "| `topics.publish` | `POST` | no |" in script.page()
