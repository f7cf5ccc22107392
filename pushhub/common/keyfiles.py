"""Key files of service accounts, as their holders read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GOOGLE = re.compile(r"https?://([^/]+\.)?google(apis)?\.com([:/]|$)")
OF_GOOGLE = "this is a key of Google Cloud, and what it signs would be good there: give one that PushHub has made"


def is_of_google(key: Mapping[str, Any]) -> bool:
    """Whether a key is Google's: whoever gets its signature could act at Google with that."""
    return GOOGLE.match(str(key.get("token_uri"))) is not None
