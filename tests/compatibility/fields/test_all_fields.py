"""Every field that is called done is tried by a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.compatibility.fields import (
    test_messages,
    test_resources,
    test_schemas,
    test_streams,
    test_subscriptions,
    test_transforms,
)
from tests.compatibility.fields.trials import tried

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
TRIALS = [test_messages, test_resources, test_schemas, test_streams, test_subscriptions, test_transforms]


def test_each_field_that_is_done_is_tried() -> None:
    fields = PAGE.read_text(encoding="utf-8").partition("## Fields")[2]
    assert tried == set(re.findall(r"^\| `(\w+\.\w+)` \| \d* \| done \|$", fields, re.MULTILINE))
