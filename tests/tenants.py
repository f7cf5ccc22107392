"""Two tenants with one row of everything each, the people who look at them, and every address of the console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Group as DjangoGroup
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from deliveries.models import ArchiveFile, DeadLetter, Delivery, Message, PipelineRun, PublishJob, Segment
from pushhub.common.clock import utcnow
from subscriptions.iam import access, grants, tree
from subscriptions.models import Project, ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.credentials import AccessToken, ServiceAccountKey
from subscriptions.models.iam import AuditEntry, Group, GroupMember, Perimeter, Policy, RoleResource, SigningKey
from subscriptions.models.schemas import Schema, SchemaRevision
from subscriptions.services import hierarchy

TENANTS = ("acme", "zebra")
#: The people who open the pages, and the role that each holds on a project, or none.
PEOPLE = {
    "superuser": None,
    "owner": ("roles/owner", "acme"),
    "viewer": ("roles/viewer", "acme"),
    "neighbour": ("roles/editor", "zebra"),
    "stranger": None,
    "anonymous": None,
}


@dataclass
class World:
    """Two tenants with one row of everything each, whose texts contain the tenant's name, and the people's clients."""

    rows: dict[str, list[Model]] = field(default_factory=dict)
    clients: dict[str, Client] = field(default_factory=dict)

    def of(self, tenant: str, model: type[Model]) -> list[Model]:
        return [row for row in self.rows[tenant] if isinstance(row, model)]


def world_of_tenants() -> World:
    """Store both tenants and sign everybody in. It needs a database and a Redis."""
    world = World()
    for number, tenant in enumerate(TENANTS, start=1):
        world.rows[tenant] = create_tenant(tenant, number)
    staff = DjangoGroup.objects.create(name="staff")
    staff.permissions.set(Permission.objects.all())
    for person, role_and_project in PEOPLE.items():
        world.clients[person] = Client()
        if person == "anonymous":
            continue
        user = User.objects.create(
            username=person, email=f"{person}@example.com", is_staff=True, is_superuser=person == "superuser"
        )
        user.groups.add(staff)
        world.clients[person].force_login(user)
        if role_and_project:
            role, project = role_and_project
            grants.grant_role(Project.objects.get(project_id=project), role=role, member=member_of(person))
    for tenant in TENANTS:
        world.rows[tenant] += Policy.objects.filter(
            kind="project", resource_pk=Project.objects.get(project_id=tenant).pk
        )
    access.forget_decisions()
    return world


def member_of(person: str) -> str:
    return f"user:{person}@example.com"


def create_tenant(tenant: str, number: int) -> list[Model]:
    organization = hierarchy.create_organization(display_name=f"Organization of {tenant}")
    folder = hierarchy.create_folder(display_name=f"Folder of {tenant}", parent=organization)
    project = Project.objects.create(project_id=tenant, folder=folder)
    topic = Topic.objects.create(project=project, topic_id=f"{tenant}-topic", labels={"owner": tenant})
    subscription = Subscription.objects.create(
        project=project, subscription_id=f"{tenant}-subscription", topic=topic, push_endpoint=f"https://{tenant}.test/"
    )
    snapshot = Snapshot.objects.create(
        project=project,
        snapshot_id=f"{tenant}-snapshot",
        topic=topic,
        topic_pk=topic.pk,
        boundary_id=1,
        expire_at=utcnow().replace(year=2100),
    )
    account = ServiceAccount.objects.create(project=project, email=f"a@{tenant}.iam.gserviceaccount.com")
    key = ServiceAccountKey.objects.create(
        account=account, key_id=f"{tenant}-key", certificate="", expires_at=snapshot.expire_at
    )
    role = RoleResource.objects.create(project=project, role_id=f"{tenant}_role", title=f"Role of {tenant}")
    grants.grant_role(topic, role="roles/pubsub.viewer", member=f"user:guest@{tenant}.test")
    schema = Schema.objects.create(project=project, schema_id=f"{tenant}-schema", type=Schema.Type.AVRO)
    SchemaRevision.objects.create(schema=schema, definition=f'{{"doc": "schema of {tenant}"}}')
    message = Message.objects.create(id=number, topic=topic, region="local", data=f"secret of {tenant}".encode())
    delivery = Delivery.objects.create(message=message, subscription=subscription, region="local", last_result=tenant)
    letter = DeadLetter.objects.create(
        message=message, subscription=subscription, source_id=number, attempts=5, result="503"
    )
    perimeter = Perimeter.objects.create(title=f"perimeter of {tenant}")
    perimeter.projects.add(project)
    token = AccessToken.objects.create(
        digest=tenant, member=f"user:guest@{tenant}.test", account=account, expires_at=snapshot.expire_at
    )
    group = Group.objects.create(email=f"crew@{tenant}.test")
    GroupMember.objects.create(group=group, member=f"user:guest@{tenant}.test")
    policy = Policy.objects.get(kind="topic", resource_pk=topic.pk)
    job = PublishJob.objects.create(
        job_id=f"replay {tenant}", kind="replay", spec={"topic": topic.name, "subscription": "", "filter": ""}
    )
    deployment = [
        SigningKey.objects.create(generation=number, kid=f"{tenant}-kid", certificate="", private_key="private"),
        Segment.objects.create(
            name=f"{number}.parquet", state="counted", reason=tenant, rows=1, job="rollup", at=utcnow()
        ),
        ArchiveFile.objects.create(path=f"{tenant}.parquet", first_id=1, last_id=2, rows=1, bytes=1),
        PipelineRun.objects.create(
            kind="replay", job_id=job.job_id, started_at=utcnow(), reported_at=utcnow(), rows=1, failure=tenant
        ),
        User.objects.create(username=f"{tenant}-user", email=f"user@{tenant}.test"),
    ]
    rows = [organization, folder, project, topic, subscription, snapshot, account, key, role, schema, message, delivery]
    rows.append(letter)
    return [*rows, perimeter, token, group, policy, job, *deployment, *AuditEntry.objects.filter(resource=topic.name)]


def patterns(resolver: URLResolver, prefix: str) -> Iterator[tuple[str, URLPattern]]:
    for entry in resolver.url_patterns:
        address = prefix + str(entry.pattern).removeprefix("^")
        if isinstance(entry, URLResolver):
            yield from patterns(entry, address)
        else:
            yield address, entry


def console_patterns() -> list[tuple[str, URLPattern]]:
    [console] = [pattern for pattern in get_resolver().url_patterns if str(pattern.pattern) == "admin/"]
    assert isinstance(console, URLResolver)
    return list(patterns(console, "/admin/"))


def model_of(pattern: str) -> Any:
    """Return the model whose pages an address belongs to, if any."""
    parts = pattern.split("/")
    return apps.all_models.get(parts[2], {}).get(parts[3]) if len(parts) > 3 else None


def addresses(world: World, *tenants: str) -> list[str]:
    """Return every address of the console, for every row of the tenants."""
    unique: dict[str, None] = {}
    for pattern, route in console_patterns():
        for values in chain.from_iterable(
            fillings(world, tenant, pattern, sorted(route.pattern.converters)) for tenant in tenants
        ):
            address = pattern
            for name, converter in route.pattern.converters.items():
                word = {"IntConverter": "int", "PathConverter": "path", "StringConverter": ""}[type(converter).__name__]
                address = address.replace(f"<{word}:{name}>" if word else f"<{name}>", str(values[name]))
            unique[address] = None
    assert len(unique) > 90
    return list(unique)


def fillings(world: World, tenant: str, pattern: str, names: list[str]) -> Iterator[dict[str, object]]:
    """Yield values for the parameters of an address; a KeyError means a parameter that this module doesn't know."""
    model = model_of(pattern)
    if "app_label" in pattern or "<url>" in pattern:
        return
    if not names:
        yield {}
    elif names == ["content_type_id", "object_id"]:
        for row in world.rows[tenant]:
            yield {"content_type_id": ContentType.objects.get_for_model(row).pk, "object_id": row.pk}
    elif names == ["name"]:
        for row in world.rows[tenant]:
            if type(row).__name__ in tree.KINDS:
                yield {"name": tree.name_of(row)}
    else:
        kinds = {"subscription_id": Subscription, "topic_id": Topic, "pk": Subscription, "message_id": Message}
        kinds |= {"object_id": model, "id": model}
        for rows in product(*(world.of(tenant, kinds[name]) for name in names)):
            yield {name: row.pk for name, row in zip(names, rows, strict=True)}
