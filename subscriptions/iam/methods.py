"""The table of what each method requires of its caller (docs/spec-access.md#permissions-of-methods), and the check.

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

#: The services and methods that several modules name.
PUBLISHER = "google.pubsub.v1.Publisher."
SUBSCRIBER = "google.pubsub.v1.Subscriber."
IAM = "google.iam.admin.v1."
CREATE_TOPIC = PUBLISHER + "CreateTopic"
GET_TOPIC = PUBLISHER + "GetTopic"
PUBLISH = PUBLISHER + "Publish"
GET_SUBSCRIPTION = SUBSCRIBER + "GetSubscription"
MODIFY_PUSH_CONFIG = SUBSCRIBER + "ModifyPushConfig"
PULL = SUBSCRIBER + "Pull"
SEEK = SUBSCRIBER + "Seek"
GET_POLICY = "google.iam.v1.IAMPolicy.GetIamPolicy"
SET_POLICY = "google.iam.v1.IAMPolicy.SetIamPolicy"


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


def _needs(permission: str, source: str, on: On = On.ITSELF) -> Requirements:
    return (Requirement(permission, source, on),)


_SERVICES: dict[str, dict[str, Requirements]] = {
    "google.pubsub.v1.Publisher": {
        "CreateTopic": _needs("pubsub.topics.create", "name", On.PARENT),
        "UpdateTopic": _needs("pubsub.topics.update", "topic.name"),
        "Publish": _needs("pubsub.topics.publish", "topic"),
        "GetTopic": _needs("pubsub.topics.get", "topic"),
        "ListTopics": _needs("pubsub.topics.list", "project"),
        "ListTopicSubscriptions": _needs("pubsub.topics.get", "topic"),
        "ListTopicSnapshots": _needs("pubsub.topics.get", "topic"),
        "DeleteTopic": _needs("pubsub.topics.delete", "topic"),
        "DetachSubscription": _needs("pubsub.topics.detachSubscription", "subscription", On.ITS_TOPIC),
    },
    "google.pubsub.v1.Subscriber": {
        "CreateSubscription": (
            Requirement("pubsub.subscriptions.create", "name", On.PARENT),
            Requirement("pubsub.topics.attachSubscription", "topic", in_body=True),
        ),
        "GetSubscription": _needs("pubsub.subscriptions.get", "subscription"),
        "UpdateSubscription": _needs("pubsub.subscriptions.update", "subscription.name"),
        "ListSubscriptions": _needs("pubsub.subscriptions.list", "project"),
        "DeleteSubscription": _needs("pubsub.subscriptions.delete", "subscription"),
        "ModifyAckDeadline": _needs("pubsub.subscriptions.consume", "subscription"),
        "Acknowledge": _needs("pubsub.subscriptions.consume", "subscription"),
        "Pull": _needs("pubsub.subscriptions.consume", "subscription"),
        "StreamingPull": _needs("pubsub.subscriptions.consume", "subscription"),
        "ModifyPushConfig": _needs("pubsub.subscriptions.update", "subscription"),
        "GetSnapshot": _needs("pubsub.snapshots.get", "snapshot"),
        "ListSnapshots": _needs("pubsub.snapshots.list", "project"),
        "CreateSnapshot": (
            Requirement("pubsub.snapshots.create", "name", On.PARENT),
            Requirement("pubsub.subscriptions.consume", "subscription", in_body=True),
        ),
        "UpdateSnapshot": _needs("pubsub.snapshots.update", "snapshot.name"),
        "DeleteSnapshot": _needs("pubsub.snapshots.delete", "snapshot"),
        "Seek": (
            Requirement("pubsub.subscriptions.consume", "subscription"),
            Requirement("pubsub.snapshots.seek", "snapshot", in_body=True),
        ),
    },
    "google.pubsub.v1.SchemaService": {
        "CreateSchema": _needs("pubsub.schemas.create", "parent"),
        "GetSchema": _needs("pubsub.schemas.get", "name"),
        "ListSchemas": _needs("pubsub.schemas.list", "parent"),
        "ListSchemaRevisions": _needs("pubsub.schemas.listRevisions", "name"),
        "CommitSchema": _needs("pubsub.schemas.commit", "name"),
        "RollbackSchema": _needs("pubsub.schemas.rollback", "name"),
        "DeleteSchemaRevision": _needs("pubsub.schemas.delete", "name"),
        "DeleteSchema": _needs("pubsub.schemas.delete", "name"),
        "ValidateSchema": _needs("pubsub.schemas.validate", "parent"),
        "ValidateMessage": (
            Requirement("pubsub.schemas.validate", "parent"),
            Requirement("pubsub.schemas.get", "name", in_body=True),
        ),
    },
    # Only REST has these.
    "google.pubsub.v1.MessageTransforms": {
        "ValidateMessageTransform": _needs("pubsub.messageTransforms.validate", "project"),
        "TestMessageTransforms": (
            Requirement("pubsub.messageTransforms.validate", "project"),
            Requirement("pubsub.topics.get", "topic", in_body=True),
            Requirement("pubsub.subscriptions.get", "subscription", in_body=True),
        ),
    },
    # Over REST, also for service accounts, projects, folders and organizations.
    "google.iam.v1.IAMPolicy": {
        "GetIamPolicy": _needs("*.getIamPolicy", "resource"),
        "SetIamPolicy": _needs("*.setIamPolicy", "resource"),
        "TestIamPermissions": (),
    },
    "google.iam.admin.v1": {
        "CreateServiceAccount": _needs("iam.serviceAccounts.create", "name"),
        "ListServiceAccounts": _needs("iam.serviceAccounts.list", "name"),
        "GetServiceAccount": _needs("iam.serviceAccounts.get", "name"),
        "PatchServiceAccount": _needs("iam.serviceAccounts.update", "service_account.name"),
        "DeleteServiceAccount": _needs("iam.serviceAccounts.delete", "name"),
        "UndeleteServiceAccount": _needs("iam.serviceAccounts.undelete", "name", On.PARENT),
        "EnableServiceAccount": _needs("iam.serviceAccounts.enable", "name"),
        "DisableServiceAccount": _needs("iam.serviceAccounts.disable", "name"),
        "CreateServiceAccountKey": _needs("iam.serviceAccountKeys.create", "name"),
        "UploadServiceAccountKey": _needs("iam.serviceAccountKeys.create", "name"),
        "ListServiceAccountKeys": _needs("iam.serviceAccountKeys.list", "name"),
        "GetServiceAccountKey": _needs("iam.serviceAccountKeys.get", "name", On.PARENT),
        "DeleteServiceAccountKey": _needs("iam.serviceAccountKeys.delete", "name", On.PARENT),
        "DisableServiceAccountKey": _needs("iam.serviceAccountKeys.disable", "name", On.PARENT),
        "EnableServiceAccountKey": _needs("iam.serviceAccountKeys.enable", "name", On.PARENT),
        "CreateRole": _needs("iam.roles.create", "parent"),
        "GetRole": _needs("iam.roles.get", "name", On.PARENT),
        "ListRoles": _needs("iam.roles.list", "parent"),
        "UpdateRole": _needs("iam.roles.update", "name", On.PARENT),
        "DeleteRole": _needs("iam.roles.delete", "name", On.PARENT),
        "UndeleteRole": _needs("iam.roles.undelete", "name", On.PARENT),
        # The predefined roles are public.
        "ListPredefinedRoles": (),
        "GetPredefinedRole": (),
    },
    "google.iam.credentials.v1": {
        "GenerateIdToken": _needs("iam.serviceAccounts.getOpenIdToken", "name"),
        "GenerateAccessToken": _needs("iam.serviceAccounts.getAccessToken", "name"),
        "SignJwt": _needs("iam.serviceAccounts.signJwt", "name"),
        "SignBlob": _needs("iam.serviceAccounts.signBlob", "name"),
    },
    "google.cloudresourcemanager.v1": {
        # Needs resourcemanager.projects.create on the parent, which the request doesn't name: create_project checks it.
        "CreateProject": (),
        "GetProject": _needs("resourcemanager.projects.get", "project"),
        # Returns only the projects that the caller may get.
        "ListProjects": (),
        "UpdateProject": _needs("resourcemanager.projects.update", "project"),
        "DeleteProject": _needs("resourcemanager.projects.delete", "project"),
        "UndeleteProject": _needs("resourcemanager.projects.undelete", "project"),
        "GetAncestry": _needs("resourcemanager.projects.get", "project"),
    },
    "google.monitoring.v3.MetricService": {
        "ListTimeSeries": _needs("monitoring.timeSeries.list", "name"),
        "ListMetricDescriptors": _needs("monitoring.metricDescriptors.list", "name"),
        "GetMetricDescriptor": _needs("monitoring.metricDescriptors.get", "name"),
    },
    # It opens connections to the endpoint and may send it a probe, so it needs more than to view the subscription.
    "pushhub.v1.Diagnostics": {
        "DiagnoseSubscription": _needs("pubsub.subscriptions.update", "subscription"),
        # It tells of the subscriptions that the caller may pull from.
        "GetMessage": (),
    },
    # Pub/Sub can't pause a subscription and keep its push config.
    "pushhub.v1.Subscriptions": {
        "PauseSubscription": _needs("pubsub.subscriptions.update", "subscription"),
        "ResumeSubscription": _needs("pubsub.subscriptions.update", "subscription"),
    },
    # Dead letters come from the backlog of the subscription that the request names. A redrive changes what it is owed,
    # as a seek does.
    "pushhub.v1.DeadLetters": {
        "ListDeadLetters": _needs("pubsub.subscriptions.get", "subscription"),
        "GetDeadLetter": _needs("pubsub.subscriptions.consume", "subscription"),
        "RedriveDeadLetters": _needs("pubsub.subscriptions.consume", "subscription"),
        "DiscardDeadLetters": _needs("pubsub.subscriptions.consume", "subscription"),
        "DeadLetterMessages": _needs("pubsub.subscriptions.consume", "subscription"),
        "SkipMessages": _needs("pubsub.subscriptions.consume", "subscription"),
    },
    # Only the console uses the rest, which has pages for resources that the REST API doesn't have.
    "google.cloud.resourcemanager.v3.Organizations": {
        "GetOrganization": _needs("resourcemanager.organizations.get", "name")
    },
    "google.cloud.resourcemanager.v3.Folders": {
        "GetFolder": _needs("resourcemanager.folders.get", "name"),
        "CreateFolder": _needs("resourcemanager.folders.create", "parent"),
        "UpdateFolder": _needs("resourcemanager.folders.update", "folder.name"),
        "DeleteFolder": _needs("resourcemanager.folders.delete", "name"),
    },
    # Needed on each project of the perimeter.
    "google.identity.accesscontextmanager.v1.AccessContextManager": {
        f"{verb}ServicePerimeter": _needs(f"accesscontextmanager.servicePerimeters.{verb.lower()}", "project")
        for verb in ("Get", "Create", "Update", "Delete")
    },
    "google.logging.v2.LoggingServiceV2": {"ListLogEntries": _needs("logging.logEntries.list", "resource_name")},
}
METHODS: Mapping[str, Requirements] = {
    f"{service}.{method}": row for service, rows in _SERVICES.items() for method, row in rows.items()
}


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
    """Do as `authorize`, for a method that is about a single row. The row need not have a policy of its own."""
    name = tree.name_of(row)
    requirements = METHODS.get(method, ())
    authorize(caller, method, {requirement.source: name for requirement in requirements if not requirement.in_body})


def may_call(caller: Principal, method: str, row: tree.Resource) -> bool:
    """Return whether `caller` may call a method about a row, for pages that offer only what isn't refused."""
    try:
        authorize_row(caller, method, row)
    except PermissionDenied:
        return False
    return True


def request_names(method: str, request: object) -> dict[str, str]:
    """Return the names that `authorize` needs, from the fields of a gRPC request."""
    sources = (requirement.source for requirement in METHODS.get(method, ()))
    return {source: str(attrgetter(source)(request)) for source in sources}


def _check(caller: Principal, requirement: Requirement, name: str) -> None:
    if access.is_root(caller):
        return  # the service reports an invalid name
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
