"""Resource names such as `projects/{project}/topics/{topic}` (docs/spec.md#resource-names)."""

from __future__ import annotations

import re
from functools import partial

from pushhub.common.errors import InvalidArgument, clipped

#: The topic of a subscription after the topic's deletion.
DELETED_TOPIC = "_deleted-topic_"
#: The schema of a topic after the schema's deletion.
DELETED_SCHEMA = "_deleted-schema_"

#: The ids of topics and subscriptions. `goog` in any letter case is reserved.
ID_PATTERN = re.compile(r"(?!goog)[a-z][a-z0-9\-_.~+%]{2,254}", re.IGNORECASE | re.ASCII)

#: The revision of a schema, after the `@`.
REVISION_PATTERN = re.compile(r"[0-9a-f]{8}", re.ASCII)

#: Wider than Google's rule (`[a-z][-a-z0-9]{4,28}[a-z0-9]`), because local projects are called `test` or `my_project`.
#: It includes the number of a project, which can replace its id, and ids of a domain's projects: `example.com:shop`.
PROJECT_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9\-_.:]{0,98}[a-z0-9])?", re.IGNORECASE | re.ASCII)

#: The ids of new projects. They are lower-case, as Google's are, so that no two differ in case alone, and have a dot in
#: the domain only, so that no two projects share the domain of their service accounts. Digits alone are a number.
NEW_PROJECT_PATTERN = re.compile(
    r"(?=.{1,100}\Z)(?:[a-z0-9-]+(?:\.[a-z0-9-]+)+:)?(?!\d+\Z)[a-z0-9](?:[a-z0-9\-_]*[a-z0-9])?", re.ASCII
)
#: What the emulator takes as a project's id, as Google's does: visible ASCII without slashes, and blanks inside.
EMULATED_PROJECT_PATTERN = re.compile(r"[!-.0-~](?:[ -.0-~]{0,98}[!-.0-~])?")
#: The largest number of a project, a folder or an organization in a name.
LAST_NUMBER = 10**18 - 1
#: Whether this process is the emulator.
_emulated = False

#: What follows the project's id in the domain of its service accounts.
ACCOUNT_DOMAIN = ".iam.gserviceaccount.com"
#: The prefix of Google's projects for the service agents of its services, including Pub/Sub's.
AGENTS_PREFIX = "gcp-sa-"
#: Google's projects for older service agents, and the domains of its default service accounts. Another project with one
#: of these names could create accounts that look like Google's.
SYSTEM_PROJECTS = frozenset(
    [
        *("appspot", "bigquery-encryption", "cloud-cdn-fill", "cloud-filer", "cloud-logs", "cloud-memcache-sa"),
        *("cloud-ml", "cloud-redis", "cloud-tpu", "cloudbuild", "cloudcomposer-accounts", "cloudservices"),
        *("compute-system", "container-analysis", "container-engine-robot", "containerregistry"),
        *("dataflow-service-producer-prod", "dataproc-accounts", "developer", "dlp-api", "endpoints-portal"),
        *("firebase-rules", "firebase-sa-management", "gae-api-prod", "gcf-admin-robot", "genomics-api"),
        *("gs-project-accounts", "iam", "remotebuildexecution", "security-center-api", "serverless-robot-prod"),
        *("service-consumer-management", "service-networking", "sourcerepo-service-accounts"),
        *("storage-transfer-service", "system", "trifacta-gcloud-prod"),
    ]
)
#: The domain of Pub/Sub's service agents, and the address of a project's agent by the project's number.
AGENT_DOMAIN = f"{AGENTS_PREFIX}pubsub{ACCOUNT_DOMAIN}"
AGENT_EMAIL_PATTERN = re.compile(rf"service-([1-9][0-9]{{0,17}})@{re.escape(AGENT_DOMAIN)}", re.ASCII)

#: The id of a service account within its project (IAM v1, CreateServiceAccountRequest.accountId).
ACCOUNT_PATTERN = re.compile(r"(?=.{6,30}\Z)[a-z](?:[-a-z0-9]*[a-z0-9])", re.ASCII)


def invalid_name(name: str, *, field: str = "name") -> InvalidArgument:
    return InvalidArgument(
        f"Invalid resource name given (name={clipped(name)}). Refer to "
        "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information.",
        field=field,
    )


def owned_name(collection: str, project: str, resource_id: str) -> str:
    """Return the full name in any of a project's collections."""
    return f"projects/{project}/{collection}/{resource_id}"


topic_name = partial(owned_name, "topics")
subscription_name = partial(owned_name, "subscriptions")
schema_name = partial(owned_name, "schemas")
snapshot_name = partial(owned_name, "snapshots")
service_account_name = partial(owned_name, "serviceAccounts")


def project_name(project: str) -> str:
    return f"projects/{project}"


#: The names of the segments in REST URLs, from the top down, and the collection of each.
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
    """Return the full name for the segments of a URL: `project="p", topic="t"` gives `projects/p/topics/t`."""
    return "/".join(f"{SEGMENTS[word]}/{segments[word]}" for word in SEGMENTS if word in segments)


def service_account_email(project: str, account_id: str) -> str:
    """Return the email of an account. A domain's project `example.com:shop` gives `...@shop.example.com.iam...`."""
    return f"{account_id}@{account_domain(project)}"


def account_domain(project: str) -> str:
    """Return the domain of a project's service accounts, which follows the `@`."""
    domain, colon, rest = project.partition(":")
    return f"{f'{rest}.{domain}' if colon else project}{ACCOUNT_DOMAIN}"


def service_agent_email(number: int) -> str:
    """Return the address of the service agent that signs the push tokens of the project with this number."""
    return f"service-{number}@{AGENT_DOMAIN}"


def service_agent_number(email: str) -> int | None:
    """Return the number of the project whose service agent has this address; None for other addresses."""
    match = AGENT_EMAIL_PATTERN.fullmatch(email)
    return int(match[1]) if match else None


def is_agent_email(email: str) -> bool:
    """Whether only service agents have such an address. No service account can get one."""
    domain = email.rpartition("@")[2].lower()
    return domain.startswith(AGENTS_PREFIX) and domain.endswith(ACCOUNT_DOMAIN)


def emulate_project_ids() -> None:
    """Take any project id from now on, as Google's emulator does."""
    global _emulated
    _emulated = True


def is_project(project: str) -> bool:
    """Whether this can be a project's id or number."""
    pattern = EMULATED_PROJECT_PATTERN if _emulated else PROJECT_PATTERN
    return pattern.fullmatch(project) is not None


def is_system_project(project_id: str) -> bool:
    """Whether Google reserves this project id, in any letter case."""
    name = project_id.lower()
    rest = name.rpartition(":")[2]
    return rest.startswith(AGENTS_PREFIX) or rest in SYSTEM_PROJECTS or "google" in name or "gserviceaccount" in name


def check_new_project(project_id: str, *, field: str) -> None:
    """Raise InvalidArgument unless a new project may have this id."""
    if _emulated and is_project(project_id):
        return
    if is_system_project(project_id):
        raise InvalidArgument(
            f"The project id {clipped(project_id)} is reserved for Google's own projects.", field=field
        )
    if not NEW_PROJECT_PATTERN.fullmatch(project_id):
        raise InvalidArgument(
            f"Invalid project id given (project_id={clipped(project_id)}). It has up to 100 lower-case letters, "
            "digits, hyphens and underscores, begins and ends with a letter or a digit, and is no number.",
            field=field,
        )


def parse_project(name: str, *, field: str = "project") -> str:
    """Return the project of `projects/{project}`; InvalidArgument if it is malformed."""
    collection, _, project = name.partition("/")
    if collection != "projects" or not is_project(project):
        raise invalid_name(name, field=field)
    return project


def parse_service_account(name: str) -> tuple[str, str]:
    """Return the (project or "-", email or unique id) of `projects/{project}/serviceAccounts/{account}`."""
    match = re.fullmatch(r"projects/([^/]+)/serviceAccounts/([^/\0]+)", name)
    if match is None or not (match[1] == "-" or is_project(match[1])):
        raise invalid_name(name)
    return match[1], match[2]


def parse_schema(name: str, *, field: str = "name") -> tuple[str, str, str]:
    """Return the (project, schema id, revision id) of a schema's full name. Without a revision, that id is empty."""
    schema, _, revision = name.partition("@")
    if revision and not REVISION_PATTERN.fullmatch(revision):
        raise invalid_name(name, field=field)
    return *parse_owned(schema, collection="schemas", field=field), revision


def parse_owned(name: str, *, collection: str, field: str = "name") -> tuple[str, str]:
    """Return the (project, id) of a full name in any of a project's collections; InvalidArgument if it is malformed."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] != "projects" or parts[2] != collection:
        raise invalid_name(name, field=field)
    if not is_project(parts[1]) or not ID_PATTERN.fullmatch(parts[3]):
        raise invalid_name(name, field=field)
    return parts[1], parts[3]


parse_topic = partial(parse_owned, collection="topics")
parse_subscription = partial(parse_owned, collection="subscriptions")
parse_snapshot = partial(parse_owned, collection="snapshots")
