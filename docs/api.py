"""Writes docs/api.md from PushHub's OpenAPI document.

.venv/bin/python docs/api.py
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    os.environ.setdefault("PUSHHUB_SECRET_KEY", "unused")
    import django

    django.setup()

TEXT = """\
# The API

`python docs/api.py` writes this page from the OpenAPI document. A running PushHub has that document at `/schema`, pages
to try each request at `/docs`, and Google's form of it, the discovery document, at `/$discovery/rest?version=v1`.

Over gRPC, the services are those of Google's protocol buffers, and the server answers to reflection
([methods](compatibility.md#grpc-methods), [fields](compatibility.md#fields)). What each method needs of a caller is in
[permissions](spec-access.md#permissions-of-methods), what it answers when it refuses in [errors](spec.md#errors).
"""


def page() -> str:
    """Return the page: a table for each tag of the document."""
    from drf_spectacular.generators import SchemaGenerator

    document = SchemaGenerator().get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    rows: dict[str, list[str]] = defaultdict(list)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            says = " ".join(operation.get("description", "").partition("\n\n")[0].split())
            rows[operation["tags"][0]].append(f"| `{method.upper()} {path}` | {says} |")
    tables = [
        "\n".join([f"## {tag[0].upper()}{tag[1:]}", "", "| request | what it does |", "|---|---|", *rows[tag], ""])
        for tag in sorted(rows)
    ]
    return "\n".join([TEXT, *tables])


if __name__ == "__main__":
    (ROOT / "docs" / "api.md").write_text(page(), encoding="utf-8")
