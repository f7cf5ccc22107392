"""The table of what each method requires of its caller (docs/spec.md#permissions-of-methods), and the check.

A requirement names a permission and where the request has the name of the resource that it is needed on.
REST takes that from the address, or from the body where the requirement says so; gRPC from the request's fields.
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
    """Which resource a requirement is about, seen from the one that the request names."""

    ITSELF = "itself"
    #: What the named one lies in: a project, or an account for its keys. The named one need not exist.
    PARENT = "parent"
    #: The topic of the named subscription.
    ITS_TOPIC = "its topic"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A permission and the resource to hold it on."""

    #: A permission that begins with `*` is that of the resource's kind: `*.setIamPolicy`.
    permission: str
    #: The path of the name in the gRPC request.
    source: str
    on: On = On.ITSELF
    #: A second resource, which REST has in the request's body. It may be absent or no name at all, which is for the
    #: service to refuse: what it cannot read it cannot use either.
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
#: Over REST, also of service accounts, projects, folders and organizations.
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
    # The predefined roles are no secret.
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
    # Needs resourcemanager.projects.create on the parent, which is no name here: services.project_create asks.
    "CreateProject": (),
    "GetProject": _one("resourcemanager.projects.get", "project"),
    # Answers with those projects that the caller may get.
    "ListProjects": (),
    "UpdateProject": _one("resourcemanager.projects.update", "project"),
    "DeleteProject": _one("resourcemanager.projects.delete", "project"),
    "UndeleteProject": _one("resourcemanager.projects.undelete", "project"),
    "GetAncestry": _one("resourcemanager.projects.get", "project"),
}
_MONITORING: dict[str, Requirements] = {
    "ListTimeSeries": _one("monitoring.timeSeries.list", "name"),
    "ListMetricDescriptors": _one("monitoring.metricDescriptors.list", "name"),
    "GetMetricDescriptor": _one("monitoring.metricDescriptors.get", "name"),
}
#: It opens connections to the endpoint and may send it a probe, so it needs more than to view the subscription.
_DIAGNOSTICS: dict[str, Requirements] = {
    "DiagnoseSubscription": _one("pubsub.subscriptions.update", "subscription"),
}
#: The rest is asked for by the console alone, which has pages of what REST has no address for.
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
    """Raise PermissionDenied unless `caller` meets all that `method` requires on the resources of these names.

    `names` has a full name for each requirement's source. A method that the table doesn't have is nobody's to call.
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
    """`authorize` for a method that is about a single row, which need not have a policy of its own."""
    name = tree.name_of(row)
    authorize(caller, method, {one.source: name for one in METHODS.get(method, ()) if not one.in_body})


def request_names(method: str, request: object) -> dict[str, str]:
    """The names that `authorize` needs, from the fields of a gRPC request."""
    return {one.source: str(attrgetter(one.source)(request)) for one in METHODS.get(method, ())}


def _check(caller: Principal, requirement: Requirement, name: str) -> None:
    if access.is_root(caller):
        return  # what is wrong with the name is for the service to say
    key: Key = (caller.identity, requirement.permission, requirement.on, name)
    if access.decisions.get(key):
        return
    permission, target = _target(requirement, name)
    if not _holds(caller, permission, requirement, target):
        raise access.denied(permission, target)
    access.decisions.put(key, True)


def _target(requirement: Requirement, name: str) -> tuple[str, str]:
    """The permission, and the name of what to hold it on; InvalidArgument where `name` is none."""
    if requirement.on == On.PARENT:
        name = "/".join(name.split("/")[:-2])
    kind = tree.kind_of_name(name, field=requirement.source)
    return requirement.permission.replace("*", kind.permissions, 1), name


def _holds(caller: Principal, permission: str, requirement: Requirement, name: str) -> bool:
    """Of what doesn't exist the caller may know if it holds the permission on the project around it."""
    resource = tree.resource_or_above(name, field=requirement.source)
    if isinstance(resource, Subscription) and requirement.on == On.ITS_TOPIC and resource.topic is not None:
        resource = resource.topic
    return resource is not None and access.allowed(caller, permission, resource)
