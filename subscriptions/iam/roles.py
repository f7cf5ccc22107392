"""Permissions and predefined roles, as data (docs/spec-access.md#predefined-roles)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OWNER = "roles/owner"
BASIC_ROLES = frozenset({OWNER, "roles/editor", "roles/viewer"})
SERVICE_AGENT = "roles/pubsub.serviceAgent"
TOKEN_CREATOR = "roles/iam.serviceAccountTokenCreator"  # noqa: S105

ACT_AS = "iam.serviceAccounts.actAs"
GET_OPEN_ID_TOKEN = "iam.serviceAccounts.getOpenIdToken"  # noqa: S105


def _of(prefix: str, verbs: str) -> frozenset[str]:
    return frozenset(f"{prefix}.{verb}" for verb in verbs.split())


_POLICY = "getIamPolicy setIamPolicy"

PUBSUB_VIEWER = (
    _of("pubsub.topics", "get list")
    | _of("pubsub.subscriptions", "get list")
    | _of("pubsub.snapshots", "get list")
    | _of("pubsub.schemas", "get list listRevisions validate")
    | _of("pubsub.messageTransforms", "validate")
)
PUBSUB_SUBSCRIBER = frozenset(
    {"pubsub.subscriptions.consume", "pubsub.topics.attachSubscription", "pubsub.snapshots.seek"}
)
PUBSUB_EDITOR = (
    PUBSUB_VIEWER
    | PUBSUB_SUBSCRIBER
    | _of("pubsub.topics", "create delete detachSubscription publish update updateTag")
    | _of("pubsub.subscriptions", "create delete update")
    | _of("pubsub.snapshots", "create delete update")
    | _of("pubsub.schemas", "attach commit create delete rollback")
)
PUBSUB_POLICIES = frozenset().union(
    *(_of(f"pubsub.{collection}", _POLICY) for collection in ("topics", "subscriptions", "snapshots", "schemas"))
)
PUBSUB_ADMIN = PUBSUB_EDITOR | PUBSUB_POLICIES

ACCOUNT_READ = _of("iam.serviceAccounts", "get list")
ACCOUNT_WRITE = _of("iam.serviceAccounts", "create delete disable enable undelete update")
ACCOUNT_POLICY = _of("iam.serviceAccounts", _POLICY)
#: Getting tokens of an account. Owners and editors of a project don't have these permissions, as on Google's side.
ACCOUNT_TOKENS = _of("iam.serviceAccounts", "getAccessToken getOpenIdToken implicitDelegation signBlob signJwt")
KEY_READ = _of("iam.serviceAccountKeys", "get list")
KEY_WRITE = _of("iam.serviceAccountKeys", "create delete disable enable")
ROLE_READ = _of("iam.roles", "get list")
ROLE_WRITE = _of("iam.roles", "create delete undelete update")

PROJECT_READ = _of("resourcemanager.projects", "get list")
PROJECT_WRITE = _of("resourcemanager.projects", "create delete move undelete update")
PROJECT_POLICY = _of("resourcemanager.projects", _POLICY)
FOLDER_READ = _of("resourcemanager.folders", "get list")
FOLDER_WRITE = _of("resourcemanager.folders", "create delete move undelete update")
FOLDER_POLICY = _of("resourcemanager.folders", _POLICY)
ORGANIZATION_READ = _of("resourcemanager.organizations", "get")
ORGANIZATION_POLICY = _of("resourcemanager.organizations", _POLICY)
PERIMETER_READ = _of("accesscontextmanager.servicePerimeters", "get list")
PERIMETER_WRITE = _of("accesscontextmanager.servicePerimeters", "create delete update")
MONITORING_READ = _of("monitoring.metricDescriptors", "get list") | {"monitoring.timeSeries.list"}
AUDIT_READ = MONITORING_READ | {"logging.logEntries.list"}
RUN_INVOKE = frozenset({"run.routes.invoke", "run.jobs.run"})

#: Reading all policies without changing them.
READ_POLICIES = frozenset(
    permission
    for permission in PUBSUB_POLICIES | ACCOUNT_POLICY | PROJECT_POLICY | FOLDER_POLICY | ORGANIZATION_POLICY
    if permission.endswith(".getIamPolicy")
)

BROWSER = PROJECT_READ | FOLDER_READ | ORGANIZATION_READ | {"resourcemanager.projects.getIamPolicy"}
VIEWER = PUBSUB_VIEWER | ACCOUNT_READ | KEY_READ | ROLE_READ | AUDIT_READ | BROWSER
EDITOR = VIEWER | PUBSUB_EDITOR | ACCOUNT_WRITE | KEY_WRITE | {ACT_AS, "resourcemanager.projects.update"}
OWNER_PERMISSIONS = EDITOR | PUBSUB_ADMIN | ACCOUNT_POLICY | ROLE_WRITE | PROJECT_WRITE | PROJECT_POLICY | RUN_INVOKE


@dataclass(frozen=True, slots=True)
class Role:
    """A predefined role."""

    name: str
    title: str
    permissions: frozenset[str]


_ROLES = (
    Role(OWNER, "Owner", OWNER_PERMISSIONS),
    Role("roles/editor", "Editor", EDITOR),
    Role("roles/viewer", "Viewer", VIEWER),
    Role("roles/pubsub.admin", "Pub/Sub Admin", PUBSUB_ADMIN | {"resourcemanager.projects.get"}),
    Role("roles/pubsub.editor", "Pub/Sub Editor", PUBSUB_EDITOR | {"resourcemanager.projects.get"}),
    Role("roles/pubsub.viewer", "Pub/Sub Viewer", PUBSUB_VIEWER | {"resourcemanager.projects.get"}),
    Role("roles/pubsub.publisher", "Pub/Sub Publisher", frozenset({"pubsub.topics.publish"})),
    Role("roles/pubsub.subscriber", "Pub/Sub Subscriber", PUBSUB_SUBSCRIBER),
    Role(
        SERVICE_AGENT,
        "Cloud Pub/Sub Service Agent",
        ACCOUNT_READ | ACCOUNT_TOKENS | {"resourcemanager.projects.get"},
    ),
    Role("roles/iam.serviceAccountUser", "Service Account User", ACCOUNT_READ | PROJECT_READ | {ACT_AS}),
    Role(TOKEN_CREATOR, "Service Account Token Creator", ACCOUNT_READ | PROJECT_READ | ACCOUNT_TOKENS),
    Role(
        "roles/iam.serviceAccountOpenIdTokenCreator",
        "Service Account OpenID Connect Identity Token Creator",
        frozenset({GET_OPEN_ID_TOKEN}),
    ),
    Role(
        "roles/iam.serviceAccountAdmin",
        "Service Account Admin",
        ACCOUNT_READ | ACCOUNT_WRITE | ACCOUNT_POLICY | PROJECT_READ,
    ),
    Role("roles/iam.serviceAccountCreator", "Create Service Accounts", ACCOUNT_READ | {"iam.serviceAccounts.create"}),
    Role("roles/iam.serviceAccountViewer", "View Service Accounts", ACCOUNT_READ | KEY_READ | PROJECT_READ),
    Role(
        "roles/iam.serviceAccountKeyAdmin",
        "Service Account Key Admin",
        ACCOUNT_READ | KEY_READ | KEY_WRITE | PROJECT_READ,
    ),
    Role("roles/iam.roleAdmin", "Role Administrator", ROLE_READ | ROLE_WRITE | PROJECT_READ),
    Role("roles/iam.organizationRoleAdmin", "Organization Role Administrator", ROLE_READ | ROLE_WRITE | PROJECT_READ),
    Role("roles/iam.roleViewer", "Role Viewer", ROLE_READ | PROJECT_READ),
    Role("roles/iam.securityReviewer", "Security Reviewer", VIEWER | READ_POLICIES),
    Role("roles/browser", "Browser", BROWSER),
    Role(
        "roles/resourcemanager.projectIamAdmin", "Project IAM Admin", PROJECT_POLICY | {"resourcemanager.projects.get"}
    ),
    Role("roles/resourcemanager.projectCreator", "Project Creator", frozenset({"resourcemanager.projects.create"})),
    Role("roles/resourcemanager.projectDeleter", "Project Deleter", frozenset({"resourcemanager.projects.delete"})),
    Role(
        "roles/resourcemanager.folderAdmin",
        "Folder Admin",
        FOLDER_READ | FOLDER_WRITE | FOLDER_POLICY | ORGANIZATION_READ | PROJECT_READ | PROJECT_POLICY,
    ),
    Role("roles/resourcemanager.folderViewer", "Folder Viewer", FOLDER_READ | PROJECT_READ),
    Role(
        "roles/resourcemanager.organizationAdmin",
        "Organization Administrator",
        ORGANIZATION_READ | ORGANIZATION_POLICY | FOLDER_READ | FOLDER_POLICY | PROJECT_READ | PROJECT_POLICY,
    ),
    Role("roles/resourcemanager.organizationViewer", "Organization Viewer", ORGANIZATION_READ),
    Role("roles/accesscontextmanager.policyAdmin", "Access Context Manager Admin", PERIMETER_READ | PERIMETER_WRITE),
    Role("roles/accesscontextmanager.policyReader", "Access Context Manager Reader", PERIMETER_READ),
    Role("roles/monitoring.viewer", "Monitoring Viewer", MONITORING_READ | {"resourcemanager.projects.get"}),
    Role("roles/run.invoker", "Cloud Run Invoker", RUN_INVOKE),
)

PREDEFINED: Mapping[str, Role] = {role.name: role for role in _ROLES}

#: All permissions: what a custom role may hold, and what `testIamPermissions` may ask for.
PERMISSIONS: frozenset[str] = frozenset().union(
    *(role.permissions for role in _ROLES), FOLDER_WRITE, ORGANIZATION_POLICY, PERIMETER_WRITE
)
