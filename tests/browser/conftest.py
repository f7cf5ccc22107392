"""The browser of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Chromium, running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """A browser that the tests of a module share: it takes longer to start than most of their pages take to open."""
    with pytest.MonkeyPatch.context() as patch, running() as chromium:
        # Django's ORM would refuse to work, but no task of Playwright's event loop uses it.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield chromium
