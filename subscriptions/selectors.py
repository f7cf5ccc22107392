"""Reading the control plane. The last part is on the path of each message: one query, only the columns needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Exists, Max, Model, Q, QuerySet

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import NotFound, clipped
from pushhub.common.prepared import PreparedRows
from subscriptions.models import Project, ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.schemas import Schema, SchemaRevision

#: Schemas in full may have 300 KB each, so that a page has fewer of them.
FULL_SCHEMAS_PAGE = 100


def resource_missing(resource_id: str, *, field: str = "") -> NotFound:
    return NotFound(f"Resource not found (resource={clipped(resource_id)}).", field=field)


def _of_project(project: str, *, prefix: str = "project__") -> Q:
    """A project's segment of a name is its id or its number. An id of old that is another's number is not looked at."""
    by_id = Q(**{f"{prefix}project_id": project})
    if not project.isdecimal() or len(project) > 18:
        return by_id
    number = int(project)
    return Q(**{f"{prefix}number": number}) | Q(by_id, ~Exists(Project.objects.filter(number=number)))


def project_get(*, project: str) -> Project:
    found = Project.objects.filter(_of_project(project, prefix="")).first()
    if found is None:
        raise resource_missing(project)
    return found


def project_exists(*, project: str) -> bool:
    return Project.objects.filter(_of_project(project, prefix="")).exists()


def owned_row(model: type[Model], *, project: str, **ids: str) -> Model | None:
    """A row of a project's, by its id; `project` is the project's id or number."""
    return model._default_manager.select_related("project").filter(_of_project(project), **ids).first()


def topic_get(*, name: str, field: str = "name", lock: bool = False) -> Topic:
    """The topic of a full name. `lock` keeps it as it is until the transaction ends."""
    project, topic_id = names.parse_topic(name, field=field)
    if lock or project.isdecimal():
        topics = Topic.objects.select_for_update(of=("self",)) if lock else Topic.objects.all()
        topic = topics.select_related("project").filter(_of_project(project), topic_id=topic_id).first()
    else:
        topic = _topic_find(project, topic_id)
    if topic is None:
        raise resource_missing(topic_id, field=field)
    return topic


@cache
def _columns(model: type[Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields]


_topics = PreparedRows(
    lambda project, topic_id: (
        Topic.objects.filter(project__project_id=project, topic_id=topic_id)
        .order_by()
        .values_list(*_columns(Topic), *(f"project__{name}" for name in _columns(Project)))
    ),
    slots=("a project", "a topic"),
)


def _topic_find(project_id: str, topic_id: str) -> Topic | None:
    """A topic with its project, at a third of what the ORM's objects take: each publish asks for one."""
    for row in _topics(project_id, topic_id):
        split = len(Topic._meta.concrete_fields)
        topic = Topic.from_db(DEFAULT_DB_ALIAS, _columns(Topic), row[:split])
        topic.project = Project.from_db(DEFAULT_DB_ALIAS, _columns(Project), row[split:])
        return topic
    return None


def subscription_get(*, name: str, lock: bool = False) -> Subscription:
    """The subscription of a full name. `lock` keeps it as it is until the transaction ends."""
    project, subscription_id = names.parse_subscription(name)
    rows = Subscription.objects.select_for_update(of=("self",)) if lock else Subscription.objects.all()
    related = rows.select_related("project", "topic__project", "dead_letter_topic__project")
    subscription = related.filter(_of_project(project), subscription_id=subscription_id).first()
    if subscription is None:
        raise resource_missing(subscription_id)
    return subscription


def schema_get(*, name: str, field: str = "name", lock: bool = False) -> Schema:
    """The schema of a full name, which may name a revision. `lock` keeps it as it is until the transaction ends."""
    project, schema_id, _ = names.parse_schema(name, field=field)
    rows = Schema.objects.select_for_update(of=("self",)) if lock else Schema.objects.all()
    schema = rows.select_related("project").filter(_of_project(project), schema_id=schema_id).first()
    if schema is None:
        raise resource_missing(schema_id, field=field)
    return schema


def schema_revision_get(*, schema: Schema, revision_id: str = "", field: str = "name") -> SchemaRevision:
    """A revision of a schema, the latest if none is named."""
    rows = schema_revisions_of(schema)
    found = (rows.filter(revision_id=revision_id) if revision_id else rows).order_by("-pk").first()
    if found is None:
        raise resource_missing(f"{schema.schema_id}@{revision_id}", field=field)
    return found


def schema_named(*, name: str) -> SchemaRevision:
    """The revision of a full name, in which `@` and the revision may be left out for the latest."""
    return schema_revision_get(schema=schema_get(name=name), revision_id=names.parse_schema(name)[2])


def schemas_of(project: Project) -> QuerySet[Schema]:
    return Schema.objects.filter(project=project).select_related("project")


def schema_revisions_of(schema: Schema) -> QuerySet[SchemaRevision]:
    return SchemaRevision.objects.filter(schema=schema).select_related("schema__project")


def schema_revisions_latest(schemas: Iterable[Schema]) -> dict[int, SchemaRevision]:
    """The latest revision of each, by the schema's key."""
    latest = SchemaRevision.objects.filter(schema__in=list(schemas)).order_by().values("schema").annotate(key=Max("pk"))
    rows = SchemaRevision.objects.filter(pk__in=latest.values("key")).select_related("schema__project")
    return {row.schema_id: row for row in rows.defer("compiled")}


def schema_revision_ids(*, name: str) -> list[tuple[int, str]]:
    """(key, revision id) of each revision of a schema, newest first: what a publish needs to know of them."""
    project, schema_id, _ = names.parse_schema(name)
    rows = SchemaRevision.objects.filter(schema__project__project_id=project, schema__schema_id=schema_id)
    return list(rows.order_by("-pk").values_list("pk", "revision_id"))


def snapshot_get(*, name: str, field: str = "name", lock: bool = False) -> Snapshot:
    """The snapshot of a full name, unless its time is over. `lock` keeps it as it is until the transaction ends."""
    project, snapshot_id = names.parse_snapshot(name, field=field)
    rows = Snapshot.objects.select_for_update(of=("self",)) if lock else Snapshot.objects.all()
    living = rows.select_related("project", "topic__project").filter(expire_at__gt=utcnow())
    snapshot = living.filter(_of_project(project), snapshot_id=snapshot_id).first()
    if snapshot is None:
        raise resource_missing(snapshot_id, field=field)
    return snapshot


def snapshots_of(project: Project) -> QuerySet[Snapshot]:
    rows = Snapshot.objects.filter(project=project, expire_at__gt=utcnow())
    return rows.select_related("project", "topic__project")


def snapshots_of_topic(topic: Topic) -> QuerySet[Snapshot]:
    return Snapshot.objects.filter(topic=topic, expire_at__gt=utcnow()).select_related("project")


def service_account_get(*, name: str, lock: bool = False) -> ServiceAccount:
    """The account of a full name, in which `-` may stand for the project and the unique id for the email."""
    project, account = names.parse_service_account(name)
    rows = ServiceAccount.objects.select_for_update(of=("self",)) if lock else ServiceAccount.objects.all()
    accounts = rows.select_related("project").filter(Q(email=account) | Q(unique_id=account), deleted_at=None)
    found = (accounts if project == "-" else accounts.filter(_of_project(project))).first()
    if found is None:
        raise NotFound(f"Service account {clipped(name)} does not exist.")
    return found


def service_account_deleted_find(*, unique_id: str) -> ServiceAccount | None:
    found = ServiceAccount.objects.select_related("project").filter(unique_id=unique_id)
    return found.exclude(deleted_at=None).first()


def service_account_deleted_get(*, name: str) -> ServiceAccount:
    """A deleted account that can be undeleted, by the full name with its unique id."""
    project, unique_id = names.parse_service_account(name)
    rows = ServiceAccount.objects.select_for_update(of=("self",)).select_related("project")
    accounts = rows.filter(unique_id=unique_id).exclude(deleted_at=None)
    found = (accounts if project == "-" else accounts.filter(_of_project(project))).first()
    if found is None:
        raise NotFound(f"Service account {clipped(name)} is not among those that can be undeleted.")
    return found


def topics_of(project: Project) -> QuerySet[Topic]:
    return Topic.objects.filter(project=project).select_related("project")


def subscriptions_attached_to(topic: Topic) -> QuerySet[Subscription]:
    return Subscription.objects.filter(topic=topic, detached=False).select_related("project")


def subscriptions_of(project: Project) -> QuerySet[Subscription]:
    return Subscription.objects.filter(project=project).select_related(
        "project", "topic__project", "dead_letter_topic__project"
    )


def service_accounts_of(project: Project) -> QuerySet[ServiceAccount]:
    return ServiceAccount.objects.filter(project=project, deleted_at=None).select_related("project")


@dataclass(frozen=True, slots=True)
class PushSettings:
    """What the data plane needs to know of a subscription, and nothing that costs a second query."""

    id: int
    name: str
    topic_id: int | None
    endpoint: str
    ack_deadline_seconds: int
    service_account_email: str
    #: Already the endpoint's URL where none is configured.
    audience: str
    no_wrapper: bool
    write_metadata: bool
    detached: bool
    minimum_backoff_ms: int | None
    maximum_backoff_ms: int | None
    #: Whether `deliveryAttempt` is told: with a dead-letter policy, or always where a setting says so.
    shows_attempts: bool
    #: How long what is not acknowledged stays: as long as the subscription says, or the topic if that is longer.
    retention_seconds: int
    attributes: Mapping[str, str]
    ordered: bool
    exactly_once: bool
    #: 0 without a dead-letter policy.
    max_delivery_attempts: int
    #: Which messages it is owed, in the language of filters.py; nothing for all.
    filter: str

    @property
    def is_push(self) -> bool:
        return bool(self.endpoint) and not self.detached


PUSH_COLUMNS = (
    "id",
    "project__project_id",
    "subscription_id",
    "topic_id",
    "push_endpoint",
    "ack_deadline_seconds",
    "oidc_service_account_email",
    "oidc_audience",
    "push_wrapper",
    "push_write_metadata",
    "detached",
    "minimum_backoff_ms",
    "maximum_backoff_ms",
    "max_delivery_attempts",
    "message_retention_seconds",
    "push_attributes",
    "enable_message_ordering",
    "enable_exactly_once_delivery",
    "filter",
    "topic__message_retention_seconds",
)


def push_settings(ids: Iterable[int]) -> dict[int, PushSettings]:
    """The settings of those of `ids` that exist."""
    rows = Subscription.objects.filter(id__in=list(ids)).order_by("id").values_list(*PUSH_COLUMNS)
    return {found.id: found for found in map(_push_settings, rows)}


def push_settings_of(subscription_id: int) -> PushSettings | None:
    """The settings of one subscription; None once it is deleted."""
    return next(map(_push_settings, _settings_row(subscription_id)), None)


_settings_row = PreparedRows(
    lambda subscription_id: Subscription.objects.filter(id=subscription_id).order_by().values_list(*PUSH_COLUMNS),
    slots=(-1,),
)


def subscriptions_of_topic(topic_id: int) -> list[PushSettings]:
    """Who is owed a message published now: the subscriptions attached to the topic."""
    return [_push_settings(row) for row in _attached(topic_id)]


_attached = PreparedRows(
    lambda topic_id: (
        Subscription.objects.filter(topic_id=topic_id, detached=False).order_by("id").values_list(*PUSH_COLUMNS)
    ),
    slots=(-1,),
)


def _push_settings(row: Sequence[Any]) -> PushSettings:
    columns = dict(zip(PUSH_COLUMNS, row, strict=True))
    return PushSettings(
        id=columns["id"],
        name=names.subscription_name(columns["project__project_id"], columns["subscription_id"]),
        topic_id=columns["topic_id"],
        endpoint=columns["push_endpoint"],
        ack_deadline_seconds=columns["ack_deadline_seconds"],
        service_account_email=columns["oidc_service_account_email"],
        audience=columns["oidc_audience"] or columns["push_endpoint"],
        no_wrapper=columns["push_wrapper"] == Subscription.Wrapper.NONE,
        write_metadata=columns["push_write_metadata"],
        detached=columns["detached"],
        minimum_backoff_ms=columns["minimum_backoff_ms"],
        maximum_backoff_ms=columns["maximum_backoff_ms"],
        shows_attempts=columns["max_delivery_attempts"] > 0 or settings.DELIVERY_ATTEMPT_ALWAYS,
        retention_seconds=max(columns["message_retention_seconds"], columns["topic__message_retention_seconds"] or 0),
        attributes=columns["push_attributes"],
        ordered=columns["enable_message_ordering"],
        exactly_once=columns["enable_exactly_once_delivery"],
        max_delivery_attempts=columns["max_delivery_attempts"],
        filter=columns["filter"],
    )
