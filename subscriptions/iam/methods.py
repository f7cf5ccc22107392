"""The table of what each method requires of its caller (docs/spec.md#permissions-of-methods), and the check.

A requirement names a permission, and the field of the request that names the resource on which it is needed. REST takes
that name from the URL, or from the body if the requirement says so; gRPC takes it from the request's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from subscriptions.iam import access, tree
from subscriptions.iam.access import Key
from subscriptions.models import Subscription


class On(StrEnum):
    """Which resource a requirement is about, relative to the resource that the request names."""

    ITSELF = "itself"
    #: What contains the named resource: a project, or the account of a key. The named resource need not exist.
    PARENT = "parent"
    #: The topic of the named subscription.
    ITS_TOPIC = "its topic"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A permission and the resource on which it is needed."""

    #: If it begins with `*`, the rest is a permission of the resource's kind, such as `*.setIamPolicy`.
    permission: str
    #: The path of the name in the gRPC request.
    source: str
    on: On = On.ITSELF
    #: A second resource, which REST names in the request's body. It may be missing or malformed; then the service
    #: refuses the request.
    in_body: bool = False


Requirements = tuple[Requirement, ...]


def _one(permission: str, source: str, on: On = On.ITSELF) -> Requirements:
    return (Requirement(permission, source, on),)


_PUBLISHER: dict[str, Requirements] = {
    "CreateTopic": _one("pubsub.topics.create", "name", On.PARENT),
    "UpdateTopic": _one("pubsub.topics.update", "topic.name"),
    "Publish": _one("pubsub.topics.publish", "topic"),
    "GetTopic": _one("pubsub.topics.get", "topic"),
    "ListTopics": _one("pubsub.topics.list", "project"),
    "ListTopicSubscriptions": _one("pubsub.topics.get", "topic"),
    "ListTopicSnapshots": _one("pubsub.topics.get", "topic"),
    "DeleteTopic": _one("pubsub.topics.delete", "topic"),
    "DetachSubscription": _one("pubsub.topics.detachSubscription", "subscription", On.ITS_TOPIC),
}
_SUBSCRIBER: dict[str, Requirements] = {
    "CreateSubscription": (
        Requirement("pubsub.subscriptions.create", "name", On.PARENT),
        Requirement("pubsub.topics.attachSubscription", "topic", in_body=True),
    ),
    "GetSubscription": _one("pubsub.subscriptions.get", "subscription"),
    "UpdateSubscription": _one("pubsub.subscriptions.update", "subscription.name"),
    "ListSubscriptions": _one("pubsub.subscriptions.list", "project"),
    "DeleteSubscription": _one("pubsub.subscriptions.delete", "subscription"),
    "ModifyAckDeadline": _one("pubsub.subscriptions.consume", "subscription"),
    "Acknowledge": _one("pubsub.subscriptions.consume", "subscription"),
    "Pull": _one("pubsub.subscriptions.consume", "subscription"),
    "StreamingPull": _one("pubsub.subscriptions.consume", "subscription"),
    "ModifyPushConfig": _one("pubsub.subscriptions.update", "subscription"),
    "GetSnapshot": _one("pubsub.snapshots.get", "snapshot"),
    "ListSnapshots": _one("pubsub.snapshots.list", "project"),
    "CreateSnapshot": (
        Requirement("pubsub.snapshots.create", "name", On.PARENT),
        Requirement("pubsub.subscriptions.consume", "subscription", in_body=True),
    ),
    "UpdateSnapshot": _one("pubsub.snapshots.update", "snapshot.name"),
    "DeleteSnapshot": _one("pubsub.snapshots.delete", "snapshot"),
    "Seek": (
        Requirement("pubsub.subscriptions.consume", "subscription"),
        Requirement("pubsub.snapshots.seek", "snapshot", in_body=True),
    ),
}
_SCHEMA_SERVICE: dict[str, Requirements] = {
    "CreateSchema": _one("pubsub.schemas.create", "parent"),
    "GetSchema": _one("pubsub.schemas.get", "name"),
    "ListSchemas": _one("pubsub.schemas.list", "parent"),
    "ListSchemaRevisions": _one("pubsub.schemas.listRevisions", "name"),
    "CommitSchema": _one("pubsub.schemas.commit", "name"),
    "RollbackSchema": _one("pubsub.schemas.rollback", "name"),
    "DeleteSchemaRevision": _one("pubsub.schemas.delete", "name"),
    "DeleteSchema": _one("pubsub.schemas.delete", "name"),
    "ValidateSchema": _one("pubsub.schemas.validate", "parent"),
    "ValidateMessage": (
        Requirement("pubsub.schemas.validate", "parent"),
        Requirement("pubsub.schemas.get", "name", in_body=True),
    ),
}
#: Over REST, also for service accounts, projects, folders and organizations.
_IAM_POLICY: dict[str, Requirements] = {
    "GetIamPolicy": _one("*.getIamPolicy", "resource"),
    "SetIamPolicy": _one("*.setIamPolicy", "resource"),
    "TestIamPermissions": (),
}
_IAM_ADMIN: dict[str, Requirements] = {
    "CreateServiceAccount": _one("iam.serviceAccounts.create", "name"),
    "ListServiceAccounts": _one("iam.serviceAccounts.list", "name"),
    "GetServiceAccount": _one("iam.serviceAccounts.get", "name"),
    "PatchServiceAccount": _one("iam.serviceAccounts.update", "service_account.name"),
    "DeleteServiceAccount": _one("iam.serviceAccounts.delete", "name"),
    "UndeleteServiceAccount": _one("iam.serviceAccounts.undelete", "name", On.PARENT),
    "EnableServiceAccount": _one("iam.serviceAccounts.enable", "name"),
    "DisableServiceAccount": _one("iam.serviceAccounts.disable", "name"),
    "CreateServiceAccountKey": _one("iam.serviceAccountKeys.create", "name"),
    "UploadServiceAccountKey": _one("iam.serviceAccountKeys.create", "name"),
    "ListServiceAccountKeys": _one("iam.serviceAccountKeys.list", "name"),
    "GetServiceAccountKey": _one("iam.serviceAccountKeys.get", "name", On.PARENT),
    "DeleteServiceAccountKey": _one("iam.serviceAccountKeys.delete", "name", On.PARENT),
    "DisableServiceAccountKey": _one("iam.serviceAccountKeys.disable", "name", On.PARENT),
    "EnableServiceAccountKey": _one("iam.serviceAccountKeys.enable", "name", On.PARENT),
    "CreateRole": _one("iam.roles.create", "parent"),
    "GetRole": _one("iam.roles.get", "name", On.PARENT),
    "ListRoles": _one("iam.roles.list", "parent"),
    "UpdateRole": _one("iam.roles.update", "name", On.PARENT),
    "DeleteRole": _one("iam.roles.delete", "name", On.PARENT),
    "UndeleteRole": _one("iam.roles.undelete", "name", On.PARENT),
    # The predefined roles are public.
    "ListPredefinedRoles": (),
    "GetPredefinedRole": (),
}
_IAM_CREDENTIALS: dict[str, Requirements] = {
    "GenerateIdToken": _one("iam.serviceAccounts.getOpenIdToken", "name"),
    "GenerateAccessToken": _one("iam.serviceAccounts.getAccessToken", "name"),
    "SignJwt": _one("iam.serviceAccounts.signJwt", "name"),
    "SignBlob": _one("iam.serviceAccounts.signBlob", "name"),
}
_RESOURCE_MANAGER: dict[str, Requirements] = {
    # Needs resourcemanager.projects.create on the parent, which the request doesn't name: project_create checks it.
    "CreateProject": (),
    "GetProject": _one("resourcemanager.projects.get", "project"),
    # Returns only the projects that the caller may get.
    "ListProjects": (),
    "UpdateProject": _one("resourcemanager.projects.update", "project"),
    "DeleteProject": _one("resourcemanager.projects.delete", "project"),
    "UndeleteProject": _one("resourcemanager.projects.undelete", "project"),
    "GetAncestry": _one("resourcemanager.projects.get", "project"),
}
_MONITORING: dict[str, Requirements] = {
    "ListTimeSeries": _one("monitoring.timeSeries.list", "name"),
}
#: It opens connections to the endpoint and may send it a probe, so it needs more than to view the subscription.
_DIAGNOSTICS: dict[str, Requirements] = {
    "DiagnoseSubscription": _one("pubsub.subscriptions.update", "subscription"),
}
#: Only the console uses the rest, which has pages for resources that the REST API doesn't have.
_ORGANIZATIONS: dict[str, Requirements] = {
    "GetOrganization": _one("resourcemanager.organizations.get", "name"),
}
_FOLDERS: dict[str, Requirements] = {
    "GetFolder": _one("resourcemanager.folders.get", "name"),
    "CreateFolder": _one("resourcemanager.folders.create", "parent"),
    "UpdateFolder": _one("resourcemanager.folders.update", "folder.name"),
    "DeleteFolder": _one("resourcemanager.folders.delete", "name"),
}
#: Needed on each project of the perimeter.
_PERIMETERS: dict[str, Requirements] = {
    f"{verb}ServicePerimeter": _one(f"accesscontextmanager.servicePerimeters.{verb.lower()}", "project")
    for verb in ("Get", "Create", "Update", "Delete")
}
_LOGGING: dict[str, Requirements] = {
    "ListLogEntries": _one("logging.logEntries.list", "resource_name"),
}


def _table() -> dict[str, Requirements]:
    services = {
        "google.pubsub.v1.Publisher": _PUBLISHER,
        "google.pubsub.v1.Subscriber": _SUBSCRIBER,
        "google.pubsub.v1.SchemaService": _SCHEMA_SERVICE,
        "google.iam.v1.IAMPolicy": _IAM_POLICY,
        "google.iam.admin.v1": _IAM_ADMIN,
        "google.iam.credentials.v1": _IAM_CREDENTIALS,
        "google.cloudresourcemanager.v1": _RESOURCE_MANAGER,
        "google.monitoring.v3.MetricService": _MONITORING,
        "pushhub.v1.Diagnostics": _DIAGNOSTICS,
        "google.cloud.resourcemanager.v3.Organizations": _ORGANIZATIONS,
        "google.cloud.resourcemanager.v3.Folders": _FOLDERS,
        "google.identity.accesscontextmanager.v1.AccessContextManager": _PERIMETERS,
        "google.logging.v2.LoggingServiceV2": _LOGGING,
    }
    return {f"{service}.{method}": row for service, rows in services.items() for method, row in rows.items()}


METHODS: Mapping[str, Requirements] = _table()


def authorize(caller: Principal, method: str, names: Mapping[str, str]) -> None:
    """Raise PermissionDenied unless `caller` holds all permissions that `method` requires.

    `names` has the full name of a resource for each requirement's source. Methods without an entry are refused.
    """
    requirements = METHODS.get(method)
    if requirements is None:
        raise PermissionDenied(f"The method {method} has no entry in the table of permissions.")
    for requirement in requirements:
        name = names.get(requirement.source, "")
        if requirement.in_body and not tree.is_name(name):
            continue
        _check(caller, requirement, name)


def authorize_row(caller: Principal, method: str, row: tree.Resource) -> None:
    """As `authorize`, for a method that is about a single row. The row need not have a policy of its own."""
    name = tree.name_of(row)
    requirements = METHODS.get(method, ())
    authorize(caller, method, {requirement.source: name for requirement in requirements if not requirement.in_body})


def request_names(method: str, request: object) -> dict[str, str]:
    """Return the names that `authorize` needs, from the fields of a gRPC request."""
    sources = (requirement.source for requirement in METHODS.get(method, ()))
    return {source: str(attrgetter(source)(request)) for source in sources}


def _check(caller: Principal, requirement: Requirement, name: str) -> None:
    if access.is_root(caller):
        return  # the service reports what is wrong with the name
    key: Key = (caller.identity, requirement.permission, requirement.on, name)
    if access.decisions.get(key):
        return
    generation = access.decisions.generation
    permission, target = _target(requirement, name)
    if not _holds(caller, permission, requirement, target):
        raise access.denied(permission, target)
    access.decisions.put(key, True, generation=generation)


def _target(requirement: Requirement, name: str) -> tuple[str, str]:
    """Return the permission and the name of the resource to check it on; InvalidArgument for a malformed name."""
    if requirement.on == On.PARENT:
        name = "/".join(name.split("/")[:-2])
    kind = tree.kind_of_name(name, field=requirement.source)
    return requirement.permission.replace("*", kind.permissions, 1), name


def _holds(caller: Principal, permission: str, requirement: Requirement, name: str) -> bool:
    """Whether the caller holds the permission. For a resource that doesn't exist, the project around it counts."""
    resource = tree.resource_or_above(name, field=requirement.source)
    if isinstance(resource, Subscription) and requirement.on == On.ITS_TOPIC and resource.topic is not None:
        resource = resource.topic
    return resource is not None and access.allowed(caller, permission, resource)
