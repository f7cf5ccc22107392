"""Writes docs/compatibility.md: every method and field of the Pub/Sub v1 API, and what PushHub does with it.

    python docs/compatibility.py          # writes the file
    python docs/compatibility.py --check  # says by its exit code whether the file is up to date

Google's methods and fields come from the discovery document of pubsub v1 and from the proto descriptors of the client
library. PushHub's come from what its requests are read with: the OpenAPI document, which is made from the routes and
the field tables, the table of gRPC methods, and the functions that accept or refuse a field's value. Only remarks on
fields are written down here, because no table has them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "compatibility.md"
DONE, REFUSED, INVALID, MISSING = "done", "refused: UNIMPLEMENTED", "refused: INVALID_ARGUMENT", "no"
#: The source of the API's functions, and of what reads pages and names for them.
READERS = (
    "subscriptions/rpc/*.py",
    "deliveries/rpc/*.py",
    "subscriptions/api/*.py",
    "deliveries/api/*.py",
    "subscriptions/paging.py",
    "subscriptions/iam/methods.py",
)
#: If several methods use a message, the best status counts.
ORDER = [MISSING, INVALID, REFUSED, DONE]
#: Remarks in place of "done": most of these fields change nothing.
REMARKS = {
    ("Topic", "tags"): "accepted on creation, never returned, as in production",
    ("Subscription", "tags"): "accepted on creation, never returned, as in production",
    ("CreateSnapshotRequest", "tags"): "accepted on creation, never returned, as in production",
    (
        "StreamingPullRequest",
        "clientId",
    ): "accepted in the first request; when a stream ends, its ordering keys stay with its client",
    ("Subscription", "analyticsHubSubscriptionInfo"): "output only, never set",
    ("AnalyticsHubSubscriptionInfo", "listing"): "output only, never set",
    ("AnalyticsHubSubscriptionInfo", "subscription"): "output only, never set",
    ("MessageTransform", "enabled"): "deprecated; accepted and returned, but `disabled` decides",
    ("Topic", "satisfiesPzs"): "output only, never set",
    ("Subscription", "state"): "always ACTIVE",
    ("Topic", "state"): "always ACTIVE",
}
IGNORED = "accepted, without effect"
#: The query parameters of every REST method; tests/integration/api/test_query_parameters.py tries them.
PARAMETERS = {
    "access_token": "done; a header keeps the token out of the logs of proxies",
    "alt": "done for `json`; other values are refused: INVALID_ARGUMENT",
    "callback": IGNORED,
    "fields": "done; an unknown field selects nothing",
    "key": IGNORED,
    "oauth_token": "done, as `access_token`",
    "prettyPrint": "done; off by default",
    "quotaUser": IGNORED,
    "uploadType": IGNORED,
    "upload_protocol": IGNORED,
    "$.xgafv": IGNORED,
}
#: The value with which a field is tried, by its type in the JSON schema.
SAMPLES: dict[str, object] = {"object": {}, "array": [{}], "string": "sample"}
#: Fields whose empty value clears them.
OWN_SAMPLES: dict[tuple[str, str], object] = {("Topic", "ingestionDataSourceSettings"): {"awsKinesis": {}}}
HEAD = """\
# Compatibility with Cloud Pub/Sub v1

`python docs/compatibility.py` writes this page. It compares Google's discovery document (revision {revision}) and
proto descriptors with PushHub's routes, field tables and gRPC methods. Don't edit the page: a test checks that it is
what the script writes.

A field is "done" if PushHub acts upon it or returns it: tests/compatibility/fields sets each of these fields and
looks at the effect. A field that PushHub can't act upon is refused with an error that names it, or its row says what
happens to it. Fields marked "no" are parts of refused fields, or no method sends or takes them. A
field that the page doesn't have, such as one that Google added later, is refused by name over REST, and ignored over
gRPC, as Protocol Buffers ignore unknown fields.

{methods_done} of {methods} REST methods are done, {calls_done} of {calls} gRPC methods, and {fields_done} of
{fields} fields; {fields_refused} more fields are refused.
"""
#: The clients that tests run: language, name, the file that pins the version, the tests.
CASES = "tests/compatibility/clients"
RECEIVERS = "docs/receivers"
CLIENTS = (
    ("Python", "google-cloud-pubsub", "requirements.txt", f"{CASES}/python"),
    ("Python", "google-api-python-client", "tests/requirements.txt", "tests/compatibility/test_cases.py"),
    ("Python", "google-auth", f"{RECEIVERS}/python/requirements.txt", f"{RECEIVERS}/python"),
    ("Python", "kombu", "requirements.txt", f"{CASES}/celery"),
    ("Node", "@google-cloud/pubsub", f"{CASES}/node/package.json", f"{CASES}/node"),
    ("Node", "google-auth-library", f"{RECEIVERS}/node/package.json", f"{RECEIVERS}/node"),
    ("Go", "cloud.google.com/go/pubsub/v2", f"{CASES}/go/go.mod", f"{CASES}/go"),
    ("Go", "google.golang.org/api", f"{RECEIVERS}/go/go.mod", f"{RECEIVERS}/go"),
    ("Java", "google-cloud-pubsub", f"{CASES}/java/pom.xml", f"{CASES}/java"),
    ("Java", "google-api-client", f"{RECEIVERS}/java/pom.xml", f"{RECEIVERS}/java"),
    ("Rust", "google-cloud-pubsub", f"{CASES}/rust/Cargo.lock", f"{CASES}/rust"),
)
CLIENTS_HEAD = f"""\
## Clients

Tests run these clients unmodified, in these versions. The clients in {CASES} publish and
receive, also in order, exactly once, with dead letters, schemas, policies and tracing, after idle times and during
shutdowns. kombu carries Celery's tasks. The clients in {RECEIVERS} verify the tokens of pushes.
"""
#: The services of the client library, whose descriptors have messages only.
SERVICES = ("Publisher", "Subscriber", "SchemaService")

Json = dict[str, Any]


def discovery() -> Json:
    """Return Google's description of its REST API, from google-api-python-client."""
    import googleapiclient

    [package] = googleapiclient.__path__
    document = Path(package, "discovery_cache", "documents", "pubsub.v1.json").read_text(encoding="utf-8")
    description: Json = json.loads(document)
    return description


def methods_of(resource: Json) -> Iterator[Json]:
    """Return the methods of a resource of the discovery document and of the resources in it."""
    yield from resource.get("methods", {}).values()
    for inside in resource.get("resources", {}).values():
        yield from methods_of(inside)


def operations() -> dict[tuple[str, str], Json]:
    """Return PushHub's operations by HTTP method and path. Each id in a path is `*`."""
    from drf_spectacular.generators import SchemaGenerator

    document = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    return {
        (verb.upper(), _shape(path)): operation
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    }


def _shape(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "*", path).strip("/")


def refusals() -> dict[tuple[str, str], Callable[[object], object]]:
    """Return the functions that accept or refuse the value of a field, by the names of message and field."""
    from subscriptions.iam import policies
    from subscriptions.models import Subscription, Topic
    from subscriptions.resources import subscriptions, topics, transforms

    readers: dict[tuple[str, str], Callable[[object], object]] = {}
    for name in topics.FIELDS.names:
        readers["Topic", name] = lambda value, name=name: topics.FIELDS.store(Topic(), {name: value}, [name])  # type: ignore[misc]
    for name in subscriptions.FIELDS.names:
        readers["Subscription", name] = lambda value, name=name: subscriptions.FIELDS.store(  # type: ignore[misc]
            Subscription(), {name: value}, [name]
        )
    for kind in ("aiInference", "compression"):
        readers["MessageTransform", kind] = lambda value, kind=kind: transforms.function_of({kind: value}, field="")  # type: ignore[misc]
    readers["Binding", "condition"] = lambda value: policies.normalise_bindings([{"condition": value}], kind="topic")
    return readers


class Fields:
    """Finds out which fields of which messages are done, by walking Google's messages and PushHub's side by side."""

    def __init__(self, document: Json) -> None:
        self.schemas: Json = document["schemas"]
        self.takers = refusals()
        self.statuses: dict[str, dict[str, str]] = {
            name: dict.fromkeys(schema.get("properties", {}), MISSING) for name, schema in self.schemas.items()
        }

    def walk(self, name: str, ours: Json, *, refused: str = "") -> None:
        """Compare Google's message `name` with `ours`, the JSON schema of PushHub's message in its place."""
        for field, theirs in self.schemas[name].get("properties", {}).items():
            known = ours.get("properties", {}).get(field)
            if known is None:
                continue
            refusal = refused or self._refusal(name, field, known)
            self.statuses[name][field] = max(self.statuses[name][field], refusal or DONE, key=ORDER.index)
            inside = theirs.get("items", theirs).get("$ref")
            if inside:
                self.walk(inside, known.get("items", known), refused=refusal)

    def _refusal(self, name: str, field: str, known: Json) -> str:
        """Try a sample value of the field; return how it is refused, or "". Errors about its parts don't count."""
        from pushhub.common.errors import InvalidArgument, PushHubError, Unimplemented

        taken = self.takers.get((name, field))
        sample = OWN_SAMPLES.get((name, field), SAMPLES.get(known.get("type", "")))
        if taken is None or sample is None or "additionalProperties" in known:
            return ""
        try:
            taken(sample)
        except Unimplemented:
            return REFUSED
        except PushHubError as error:
            is_own = isinstance(sample, dict) and error.field.rpartition(".")[2] == field
            return INVALID if is_own and isinstance(error, InvalidArgument) else ""
        return ""


def rest_rows(document: Json, served: Mapping[tuple[str, str], Json], fields: Fields) -> list[list[str]]:
    """Return a row for each REST method, and compare the fields of its messages."""
    rows = []
    for method in sorted(methods_of(document), key=lambda method: str(method["id"])):
        operation = served.get((method["httpMethod"], _shape(method["flatPath"])))
        queries = [name for name, parameter in method["parameters"].items() if parameter["location"] == "query"]
        lacking = [name for name in queries if operation is None or name not in _parameters(operation)]
        if operation is not None:
            _walk_messages(method, operation, fields)
        status = MISSING if operation is None else DONE + "".join(f", without `{name}`" for name in lacking)
        rows.append([f"`{method['id'].removeprefix('pubsub.projects.')}`", f"`{method['httpMethod']}`", status])
    return rows


def _parameters(operation: Json) -> set[str]:
    return {parameter["name"] for parameter in operation.get("parameters", ())}


def _walk_messages(method: Json, operation: Json, fields: Fields) -> None:
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    fields.walk(method["response"]["$ref"], answer)
    if "request" in method and "requestBody" in operation:
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        fields.walk(method["request"]["$ref"], body)


def proto_methods() -> Iterator[tuple[str, str]]:
    """Return (service, method) of each RPC that the client library's transports name."""
    import google.pubsub_v1

    [package] = google.pubsub_v1.__path__
    for service in SERVICES:
        folder = re.sub(r"(?<!^)(?=[A-Z])", "_", service).lower()
        source = Path(package, "services", folder, "transports", "grpc.py").read_text(encoding="utf-8")
        for name in sorted(set(re.findall(rf'"/google\.pubsub\.v1\.{service}/(\w+)"', source))):
            yield f"google.pubsub.v1.{service}", name
    for name in ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions"):
        yield "google.iam.v1.IAMPolicy", name


def grpc_rows() -> list[list[str]]:
    """Return a row for each RPC."""
    from pushhub.runtime.grpcserver import services

    served = services()
    return [
        [f"`{service}.{name}`", DONE if name in served.get(service, {}) else MISSING]
        for service, name in proto_methods()
    ]


def proto_fields() -> Iterator[tuple[str, str, int, str]]:
    """Return (message, JSON name, number, proto name) of each field of the descriptors, with short message names."""
    from google.pubsub_v1.types import pubsub, schema

    seen = set()
    for module in (pubsub, schema):
        pending = list(module.Topic.pb().DESCRIPTOR.file.message_types_by_name.values() if module is pubsub else ())
        pending += list(module.Schema.pb().DESCRIPTOR.file.message_types_by_name.values() if module is schema else ())
        while pending:
            message = pending.pop(0)
            pending += message.nested_types
            if message.full_name in seen or message.GetOptions().map_entry:
                continue
            seen.add(message.full_name)
            for field in message.fields:
                yield message.name, field.json_name, field.number, field.name


def attributes_read() -> set[str]:
    """Return the names that the source of the API's functions reads from requests or sets in answers.

    gRPC's own functions call fields by their proto names, and those that REST and gRPC share by their JSON names.
    """
    names = set()
    for pattern in READERS:
        for path in ROOT.glob(pattern):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute):
                    names.add(node.attr)
                elif isinstance(node, ast.keyword) and node.arg:
                    names.add(node.arg)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names.add(node.value)
    return names


def messages_served() -> set[str]:
    """Return the short names of the messages that the gRPC methods take and return, and of the messages in them."""
    from pushhub.runtime.grpcserver import services

    pending = [
        kind.DESCRIPTOR
        for methods in services().values()
        for method in methods.values()
        for kind in (method.request, method.answer)
    ]
    full_names = set()
    while pending:
        message = pending.pop()
        if message.full_name not in full_names:
            full_names.add(message.full_name)
            pending += [field.message_type for field in message.fields if field.message_type is not None]
    return {name.rpartition(".")[2] for name in full_names}


def field_rows(fields: Fields) -> list[list[str]]:
    """Return a row for each field that the discovery document or a descriptor has."""
    numbers = {(message, field): (number, proto) for message, field, number, proto in proto_fields()}
    read, served = attributes_read(), messages_served()
    rows = {
        (message, field): status for message, statuses in fields.statuses.items() for field, status in statuses.items()
    }
    for key, (_, proto) in numbers.items():
        if key not in rows:  # only gRPC has it: REST has it in its addresses, or not at all
            rows[key] = DONE if {proto, key[1]} & read and key[0] in served else MISSING
    return [
        [
            f"`{message}.{field}`",
            str(numbers[message, field][0]) if (message, field) in numbers else "",
            _with_effect((message, field), status),
        ]
        for (message, field), status in sorted(rows.items())
    ]


def client_rows() -> list[list[str]]:
    """Return a row for each client that tests run, with the version that its file of dependencies pins."""
    rows = []
    for language, name, file, tests in CLIENTS:
        pins = (ROOT / file).read_text(encoding="utf-8")
        pin = re.search(
            rf'(?<![-\w/]){re.escape(name)}(?:==|": "| |"\nversion = "|</artifactId>\s*<version>)v?([\d.]+\d)', pins
        )
        if pin is None:
            raise ValueError(f"{file} does not pin {name}")
        rows.append([language, f"`{name}`", pin[1], f"`{tests}`"])
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _with_effect(key: tuple[str, str], status: str) -> str:
    return REMARKS.get(key, DONE) if status == DONE else status


def _done(rows: list[list[str]]) -> int:
    return sum(row[-1] == DONE for row in rows)


def page() -> str:
    """Return all of docs/compatibility.md. Django must be set up."""
    document = discovery()
    fields = Fields(document)
    methods = rest_rows(document, operations(), fields)
    calls, messages = grpc_rows(), field_rows(fields)
    head = HEAD.format(
        revision=document["revision"],
        methods=len(methods),
        methods_done=_done(methods),
        calls=len(calls),
        calls_done=_done(calls),
        fields=len(messages),
        fields_done=_done(messages),
        fields_refused=sum(row[-1] in (REFUSED, INVALID) for row in messages),
    )
    parts = [
        head,
        CLIENTS_HEAD,
        table(["language", "client", "version", "tests"], client_rows()),
        "## REST methods\n",
        table(["method", "HTTP", "PushHub"], methods),
        "## Query parameters of every REST method\n",
        table(
            ["parameter", "PushHub"],
            [[f"`{name}`", PARAMETERS.get(name, MISSING)] for name in sorted(document["parameters"])],
        ),
        "## gRPC methods\n",
        table(["method", "PushHub"], calls),
        "## Fields\n",
        table(["field", "number", "PushHub"], messages),
    ]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        return int(not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    os.environ.setdefault("PUSHHUB_SECRET_KEY", "not used: this only looks at the code")
    import django

    django.setup()
    sys.exit(main())
