"""Resource names: `projects/{project}/topics/{topic}` and its kin (pubsub-spec.md, section 2)."""

from __future__ import annotations

import re

from pushhub.errors import InvalidArgument, clipped

#: What a subscription shows as its topic once that is deleted.
DELETED_TOPIC = "_deleted-topic_"
#: The same of a topic's schema.
DELETED_SCHEMA = "_deleted-schema_"

#: Topics and subscriptions alike. `goog` in any letter case is not for users.
ID_PATTERN = re.compile(r"(?!goog)[a-z][a-z0-9\-_.~+%]{2,254}", re.IGNORECASE | re.ASCII)

#: Of a schema, after the `@`.
REVISION_PATTERN = re.compile(r"[0-9a-f]{8}", re.ASCII)

#: Wider than Google's own rule (`[a-z][-a-z0-9]{4,28}[a-z0-9]`), as local projects are called `test` or `my_project`;
#: a project's number is as good as its id, and `example.com:shop` is an id of a domain's project.
PROJECT_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9\-_.:]{0,98}[a-z0-9])?", re.IGNORECASE | re.ASCII)

#: Of a service account within its project (IAM v1, CreateServiceAccountRequest.accountId).
ACCOUNT_PATTERN = re.compile(r"(?=.{6,30}\Z)[a-z](?:[-a-z0-9]*[a-z0-9])", re.ASCII)


def invalid_name(name: str, *, field: str = "name") -> InvalidArgument:
    return InvalidArgument(
        f"Invalid resource name given (name={clipped(name)}). Refer to "
        "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information.",
        field=field,
    )


def topic_name(project: str, topic_id: str) -> str:
    return f"projects/{project}/topics/{topic_id}"


def subscription_name(project: str, subscription_id: str) -> str:
    return f"projects/{project}/subscriptions/{subscription_id}"


def schema_name(project: str, schema_id: str) -> str:
    return f"projects/{project}/schemas/{schema_id}"


def snapshot_name(project: str, snapshot_id: str) -> str:
    return f"projects/{project}/snapshots/{snapshot_id}"


def project_name(project: str) -> str:
    return f"projects/{project}"


def organization_name(number: int | str) -> str:
    return f"organizations/{number}"


def folder_name(number: int | str) -> str:
    return f"folders/{number}"


#: What the addresses of the REST API call their segments, from the top down, and the collection each belongs to.
SEGMENTS = {
    "organization": "organizations",
    "folder": "folders",
    "project": "projects",
    "topic": "topics",
    "subscription": "subscriptions",
    "snapshot": "snapshots",
    "schema": "schemas",
    "account": "serviceAccounts",
    "key": "keys",
    "role": "roles",
}


def of_segments(**segments: str) -> str:
    """The full name made of an address' segments: `project="p", topic="t"` is `projects/p/topics/t`."""
    return "/".join(f"{SEGMENTS[word]}/{segments[word]}" for word in SEGMENTS if word in segments)


def service_account_name(project: str, email: str) -> str:
    return f"projects/{project}/serviceAccounts/{email}"


def service_account_email(project: str, account_id: str) -> str:
    """A domain's project `example.com:shop` gives `...@shop.example.com.iam.gserviceaccount.com`."""
    domain, colon, rest = project.partition(":")
    return f"{account_id}@{f'{rest}.{domain}' if colon else project}.iam.gserviceaccount.com"


def parse_topic(name: str, *, field: str = "name") -> tuple[str, str]:
    """The (project, topic id) of a topic's full name; InvalidArgument if it is not one."""
    return _parse(name, collection="topics", field=field)


def parse_subscription(name: str, *, field: str = "name") -> tuple[str, str]:
    """The (project, subscription id) of a subscription's full name; InvalidArgument if it is not one."""
    return _parse(name, collection="subscriptions", field=field)


def parse_snapshot(name: str, *, field: str = "name") -> tuple[str, str]:
    """The (project, snapshot id) of a snapshot's full name; InvalidArgument if it is not one."""
    return _parse(name, collection="snapshots", field=field)


def parse_project(name: str, *, field: str = "project") -> str:
    """The project of `projects/{project}`; InvalidArgument if it is not that."""
    collection, _, project = name.partition("/")
    if collection != "projects" or not PROJECT_PATTERN.fullmatch(project):
        raise invalid_name(name, field=field)
    return project


def parse_service_account(name: str, *, field: str = "name") -> tuple[str, str]:
    """The (project or "-", email or unique id) of `projects/{project}/serviceAccounts/{account}`."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != "projects" or parts[2] != "serviceAccounts":
        raise invalid_name(name, field=field)
    if parts[1] != "-" and not PROJECT_PATTERN.fullmatch(parts[1]):
        raise invalid_name(name, field=field)
    if not parts[3] or "\0" in parts[3]:
        raise invalid_name(name, field=field)
    return parts[1], parts[3]


def parse_schema(name: str, *, field: str = "name") -> tuple[str, str, str]:
    """The (project, schema id, revision id) of a schema's full name; the last is empty where it names no revision."""
    schema, _, revision = name.partition("@")
    if revision and not REVISION_PATTERN.fullmatch(revision):
        raise invalid_name(name, field=field)
    return *_parse(schema, collection="schemas", field=field), revision


def parse_owned(name: str, *, collection: str, field: str = "name") -> tuple[str, str]:
    """The (project, id) of what lies in any of a project's collections; InvalidArgument if it is not that."""
    return _parse(name, collection=collection, field=field)


def _parse(name: str, *, collection: str, field: str) -> tuple[str, str]:
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != "projects" or parts[2] != collection:
        raise invalid_name(name, field=field)
    if not PROJECT_PATTERN.fullmatch(parts[1]) or not ID_PATTERN.fullmatch(parts[3]):
        raise invalid_name(name, field=field)
    return parts[1], parts[3]
