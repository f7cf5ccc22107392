"""Writes docs/compatibility.md: every method and field of the Pub/Sub v1 API, and what PushHub does with it.

    python docs/compatibility.py          # writes the file
    python docs/compatibility.py --check  # says by its exit code whether the file is up to date

Methods come from the client libraries (the discovery document for REST, gapic_metadata.json for gRPC) and are looked up
in the routes and servicers. Fields come from the proto descriptors and are looked up in the tables that requests are
read by. Only what is taken without having an effect is written down here, as no table says that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "compatibility.md"
#: Fields that are kept and given back, and change nothing.
WITHOUT_EFFECT = {
    ("Topic", "kms_key_name"): "kept; the database's own encryption is all there is",
    ("Topic", "message_storage_policy"): "kept; messages stay where the database is",
    ("Topic", "tags"): "taken when it is created, not given back, as in production",
    ("Subscription", "tags"): "taken when it is created, not given back, as in production",
    ("Subscription", "analytics_hub_subscription_info"): "output only, never set",
    ("Topic", "satisfies_pzs"): "output only, never set",
    ("Subscription", "state"): "always ACTIVE",
    ("Topic", "state"): "always ACTIVE",
}
#: Messages whose fields are listed, and the table each is read by.
RESOURCES = ("Topic", "Subscription", "PushConfig", "Snapshot", "Schema", "PubsubMessage")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    text = document()
    if given.check:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


def document() -> str:
    """The whole file."""
    rest, rpcs = list(rest_rows()), list(rpc_rows())
    lines = [
        "# Compatibility with Pub/Sub v1",
        "",
        "Written by `python docs/compatibility.py` from the official clients' own descriptions of the API and from",
        "PushHub's routes, servicers and field tables. A test compares.",
        "",
        f"REST: {_count(rest)} methods. gRPC: {_count(rpcs)} methods.",
        "",
        "## REST",
        "",
        "| method | address | |",
        "|---|---|---|",
        *(f"| `{name}` | `{verb} {path}` | {_mark(done)} |" for name, verb, path, done in rest),
        "",
        "## gRPC",
        "",
        "| method | |",
        "|---|---|",
        *(f"| `{name}` | {_mark(done)} |" for name, done in rpcs),
    ]
    for name in RESOURCES:
        lines += ["", f"## {name}", "", "| field | |", "|---|---|"]
        lines += [f"| `{field}` | {state} |" for field, state in field_rows(name)]
    return "\n".join(lines) + "\n"


def _mark(done: bool) -> str:
    return "done" if done else "**not there**"


def _count(rows: list[Any]) -> str:
    return f"{sum(row[-1] for row in rows)} of {len(rows)}"


def rest_rows() -> Iterator[tuple[str, str, str, bool]]:
    """Each method of the discovery document: its id, HTTP method, address, and whether a view answers it."""
    from django.urls import Resolver404, resolve
    from googleapiclient import discovery_cache

    folder = Path(discovery_cache.__file__).parent / "documents"
    found = json.loads((folder / "pubsub.v1.json").read_text(encoding="utf-8"))
    for method in sorted(_methods(found), key=lambda method: str(method["id"])):
        address = "/" + re.sub(r"\{[^}]*\}", "something", method["flatPath"])
        try:
            view: Any = resolve(address).func
            done = method["httpMethod"] in getattr(view.view_class, "methods", {})
        except Resolver404:
            done = False
        yield method["id"].removeprefix("pubsub.projects."), method["httpMethod"], method["flatPath"], done


def _methods(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from part.get("methods", {}).values()
    for resource in part.get("resources", {}).values():
        yield from _methods(resource)


def rpc_rows() -> Iterator[tuple[str, bool]]:
    """Each method of the gRPC clients, and whether a servicer answers it."""
    from google import pubsub_v1
    from google.iam.v1 import iam_policy_pb2

    from pushhub.grpcserver import services

    served = {f"{service}.{name}" for service, methods in services().items() for name in methods}
    found = json.loads((Path(pubsub_v1.__file__).parent / "gapic_metadata.json").read_text(encoding="utf-8"))
    names = [
        f"google.pubsub.v1.{service}.{method}"
        for service, described in found["services"].items()
        for method in described["clients"]["grpc"]["rpcs"]
    ]
    policy = iam_policy_pb2.DESCRIPTOR.services_by_name["IAMPolicy"]
    names += [f"google.iam.v1.IAMPolicy.{method.name}" for method in policy.methods]
    for name in sorted(names):
        yield name, name in served


def field_rows(name: str) -> Iterator[tuple[str, str]]:
    """Each field of a message, and what becomes of it."""
    from google.pubsub_v1.types import pubsub, schema

    described = getattr(pubsub, name, None) or getattr(schema, name)
    table = _table(name)
    for field in described.pb().DESCRIPTOR.fields:
        if table is None or field.json_name not in table.fields:
            yield field.name, "**not there**"
        elif _is_refused(name, field.json_name):
            yield field.name, "refused with UNIMPLEMENTED"
        else:
            yield field.name, WITHOUT_EFFECT.get((name, field.name), "done")


def _table(name: str) -> Any:
    from deliveries.api.publish_request import PUBSUB_MESSAGE
    from subscriptions import fields

    tables = {"PushConfig": "PUSH_CONFIG", "PubsubMessage": ""}
    return PUBSUB_MESSAGE if name == "PubsubMessage" else getattr(fields, tables.get(name, name.upper()), None)


def _is_refused(name: str, field: str) -> bool:
    """Whether setting it is refused: asked of the very function that sets it."""
    from pushhub.errors import Unimplemented
    from subscriptions import assign

    assigned = {"Topic": assign.TOPIC_FIELDS, "Subscription": assign.SUBSCRIPTION_FIELDS}.get(name, {}).get(field)
    if assigned is None or not assigned.__qualname__.startswith("_unsupported"):
        return False
    try:
        assigned(object(), {"something": "set"})  # type: ignore[arg-type]
    except Unimplemented:
        return True
    return False


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    os.environ.setdefault("PUSHHUB_SECRET_KEY", "not used: this only looks at the code")
    import django

    django.setup()
    sys.exit(main())
