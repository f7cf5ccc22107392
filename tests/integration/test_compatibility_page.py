"""docs/compatibility.md is the output of its script, and the script calls done only what is done."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.docscripts import ROOT, script_of

pytestmark = pytest.mark.any_database


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return script_of("compatibility")


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    assert (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8") == script.page()


def test_a_field_that_is_refused_is_not_called_done(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row = "| `Topic.labels` | 2 | {} |"
    assert row.format("done") in script.page()
    monkeypatch.setattr(
        script.Fields,
        "_refusal",
        lambda self, name, field, known: script.REFUSED if (name, field) == ("Topic", "labels") else "",
    )
    assert row.format("refused: UNIMPLEMENTED") in script.page()


@pytest.mark.parametrize(
    "row",
    [
        "`Subscription.bigqueryConfig` | 18 | refused: UNIMPLEMENTED",
        "`MessageTransform.aiInference` | 6 | refused: UNIMPLEMENTED",
        "`MessageTransform.compression` | 7 | refused: UNIMPLEMENTED",
        "`Topic.kmsKeyName` | 5 | refused: UNIMPLEMENTED",
        "`Topic.ingestionDataSourceSettings` | 10 | refused: UNIMPLEMENTED",
        "`Binding.condition` |  | refused: INVALID_ARGUMENT",
        "`Expr.expression` |  | refused: INVALID_ARGUMENT",
    ],
)
def test_a_field_that_the_code_refuses_is_called_refused(script: ModuleType, row: str) -> None:
    assert f"| {row} |" in script.page()


def test_a_method_without_a_route_is_not_called_done(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    served = script.operations()
    gone = ("POST", "v1/projects/*/topics/*:publish")
    assert gone in served
    monkeypatch.setattr(
        script, "operations", lambda: {key: operation for key, operation in served.items() if key != gone}
    )
    assert "| `topics.publish` | `POST` | no |" in script.page()
