"""OAuth scopes: what a token may be used for, whoever bears it. Pure."""

from __future__ import annotations

import re

CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
#: Each of these opens the API; the policies say what the bearer may do. Other scopes open nothing, such as `openid` and
#: `email`, which tokens for signing in have.
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


def read_scopes(scope: object) -> list[str]:
    """Return the scopes of a claim, which separates them by blanks. A malformed claim has none."""
    words = scope.split(" ") if isinstance(scope, str) else []
    scopes = list(dict.fromkeys(word for word in words if word))
    return scopes if len(scopes) <= MAX_SCOPES and all(SCOPE.fullmatch(scope) for scope in scopes) else []
