"""OAuth scopes: what a token may be used for, whoever its bearer is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: Any of these opens the API, where policies say what its bearer may do. Others, such as `openid` and `email`, which
#: tokens for signing in have, open nothing.
OPENING = frozenset(
    {
        CLOUD_PLATFORM,
        "https://www.googleapis.com/auth/pubsub",
        "https://www.googleapis.com/auth/iam",
        "https://www.googleapis.com/auth/cloudplatformprojects",
    }
)
MAX_SCOPES = 50
#: RFC 6749, section 3.3.
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}", re.ASCII)


def scopes_read(scope: object) -> list[str]:
    """The scopes of a claim, which separates them by blanks; none if it is malformed."""
    words = scope.split(" ") if isinstance(scope, str) else []
    found = list(dict.fromkeys(word for word in words if word))
    return found if len(found) <= MAX_SCOPES and all(SCOPE.fullmatch(word) for word in found) else []


def opens_the_api(scopes: Iterable[str]) -> bool:
    return not OPENING.isdisjoint(scopes)
