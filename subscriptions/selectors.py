"""Queries of the control plane. The last part serves every message: one query with only the needed columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, TypeVar

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Exists, Max, Model, Q, QuerySet

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import NotFound, clipped
from pushhub.common.prepared import ParsedRows, PreparedRows
from pushhub.common.rows import row_or_none
from subscriptions.models import Project, ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.iam import AuditEntry
from subscriptions.models.schemas import Schema, SchemaRevision
from subscriptions.transforms.functions import Function, functions_on

Row = TypeVar("Row", bound=Model)

#: A full schema may have 300 KB, so pages of them are shorter.
FULL_SCHEMAS_PAGE = 100


def resource_missing(resource_id: str, *, field: str = "") -> NotFound:
    return NotFound(f"Resource not found (resource={clipped(resource_id)}).", field=field)


def _of_project(project: str, *, prefix: str = "project__") -> Q:
    """Return the condition for a project's id or number. If an id is also another project's number, the number wins."""
    by_id = Q(**{f"{prefix}project_id": project})
    if not project.isdecimal() or len(project) > 18:
        return by_id
    number = int(project)
    return Q(**{f"{prefix}number": number}) | Q(by_id, ~Exists(Project.objects.filter(number=number)))


def get_project(*, project: str) -> Project:
    row = row_or_none(Project.objects.filter(_of_project(project, prefix="")))
    if row is None:
        raise resource_missing(project)
    return row


def project_exists(*, project: str) -> bool:
    return Project.objects.filter(_of_project(project, prefix="")).exists()


def owned_row(model: type[Model], *, project: str, **ids: str) -> Model | None:
    """Return a row of a project by its id. `project` is the project's id or number."""
    return row_or_none(model._default_manager.select_related("project").filter(_of_project(project), **ids))


def get_topic(*, name: str, field: str = "name", lock: bool = False) -> Topic:
    """Return the topic of a full name. `lock` locks its row until the transaction ends."""
    project, topic_id = names.parse_topic(name, field=field)
    if lock or project.isdecimal():
        topics = Topic.objects.select_related("project").filter(_of_project(project), topic_id=topic_id)
        return _get_row(topics, topic_id, lock=lock, field=field)
    topic = _find_topic(project, topic_id)
    if topic is None:
        raise resource_missing(topic_id, field=field)
    return topic


def _get_row(rows: QuerySet[Row], identifier: str, *, lock: bool, field: str = "") -> Row:
    """Return the row that a query by name finds. Raises NotFound."""
    row = row_or_none(rows.select_for_update(of=("self",)) if lock else rows)
    if row is None:
        raise resource_missing(identifier, field=field)
    return row


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


def _find_topic(project_id: str, topic_id: str) -> Topic | None:
    """Return a topic with its project, in a third of the time that the ORM takes. Every publish needs one."""
    for row in _topics(project_id, topic_id):
        split = len(Topic._meta.concrete_fields)
        topic = Topic.from_db(DEFAULT_DB_ALIAS, _columns(Topic), row[:split])
        topic.project = Project.from_db(DEFAULT_DB_ALIAS, _columns(Project), row[split:])
        return topic
    return None


def get_subscription(*, name: str, lock: bool = False) -> Subscription:
    """Return the subscription of a full name. `lock` locks its row until the transaction ends."""
    project, subscription_id = names.parse_subscription(name)
    rows = Subscription.objects.select_related("project", "topic__project", "dead_letter_topic__project")
    return _get_row(rows.filter(_of_project(project), subscription_id=subscription_id), subscription_id, lock=lock)


def read_subscription(*, name: str) -> Subscription:
    """Return the subscription as `get_subscription` does, in a fraction of the time.

    Callers share the row, so they must not change it. Every pull and acknowledgement needs one.
    """
    project, subscription_id = names.parse_subscription(name)
    if project.isdecimal():
        return get_subscription(name=name)
    rows = _subscriptions(project, subscription_id)
    if not rows:
        raise resource_missing(subscription_id)
    return rows[0]


def _subscription_of(row: Sequence[Any]) -> Subscription:
    """Return a subscription with its project and its topic, from the columns of all three."""
    own_count, project_count = len(_columns(Subscription)), len(_columns(Project))
    project_columns, topic_columns = row[own_count : own_count + project_count], row[own_count + project_count :]
    subscription = Subscription.from_db(DEFAULT_DB_ALIAS, _columns(Subscription), row[:own_count])
    subscription.project = Project.from_db(DEFAULT_DB_ALIAS, _columns(Project), project_columns)
    if subscription.topic_id is not None:
        subscription.topic = Topic.from_db(DEFAULT_DB_ALIAS, _columns(Topic), topic_columns)
    return subscription


_subscriptions = ParsedRows(
    PreparedRows(
        lambda project, subscription_id: (
            Subscription.objects.filter(project__project_id=project, subscription_id=subscription_id)
            .order_by()
            .values_list(
                *_columns(Subscription),
                *(f"project__{name}" for name in _columns(Project)),
                *(f"topic__{name}" for name in _columns(Topic)),
            )
        ),
        slots=("a project", "a subscription"),
    ),
    _subscription_of,
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Who paused a subscription, and since when it is paused."""

    by: str
    since: datetime


def pause_of(subscription: Subscription) -> Pause | None:
    """Return the pause of a subscription; None if it isn't paused, or was before the audit log begins."""
    if not subscription.paused:
        return None
    changes = AuditEntry.objects.filter(resource=subscription.name, before__paused=False, after__paused=True)
    last = changes.order_by("-pk").values_list("caller", "at").first()
    return Pause(*last) if last is not None else None


def get_schema(*, name: str, field: str = "name", lock: bool = False) -> Schema:
    """Return the schema of a full name, which may include a revision. `lock` locks its row until the end."""
    project, schema_id, _ = names.parse_schema(name, field=field)
    rows = Schema.objects.select_related("project").filter(_of_project(project), schema_id=schema_id)
    return _get_row(rows, schema_id, lock=lock, field=field)


def get_schema_revision(*, schema: Schema, revision_id: str = "", field: str = "name") -> SchemaRevision:
    """Return a revision of a schema, by default the latest."""
    rows = schema_revisions_of(schema)
    revision = (rows.filter(revision_id=revision_id) if revision_id else rows).order_by("-pk").first()
    if revision is None:
        raise resource_missing(f"{schema.schema_id}@{revision_id}", field=field)
    return revision


def schema_named(*, name: str) -> SchemaRevision:
    """Return the revision of a full name. Without `@` and a revision, it is the latest."""
    return get_schema_revision(schema=get_schema(name=name), revision_id=names.parse_schema(name)[2])


def schemas_of(project: Project) -> QuerySet[Schema]:
    return Schema.objects.filter(project=project).select_related("project")


def schema_revisions_of(schema: Schema) -> QuerySet[SchemaRevision]:
    return SchemaRevision.objects.filter(schema=schema).select_related("schema__project")


def schema_revisions_latest(schemas: Iterable[Schema], *, full: bool) -> dict[int, SchemaRevision]:
    """Return the latest revision of each schema, by the schema's key. Without `full`, definitions aren't read."""
    latest = SchemaRevision.objects.filter(schema__in=list(schemas)).order_by().values("schema").annotate(key=Max("pk"))
    rows = SchemaRevision.objects.filter(pk__in=latest.values("key")).select_related("schema__project")
    large = ("compiled",) if full else ("compiled", "definition")
    return {row.schema_id: row for row in rows.defer(*large)}


def schema_revision_ids(*, name: str) -> list[tuple[int, str]]:
    """Return the (key, revision id) of each revision of a schema, newest first, as a publish needs them."""
    project, schema_id, _ = names.parse_schema(name)
    rows = SchemaRevision.objects.filter(schema__project__project_id=project, schema__schema_id=schema_id)
    return list(rows.order_by("-pk").values_list("pk", "revision_id"))


def get_snapshot(*, name: str, field: str = "name", lock: bool = False) -> Snapshot:
    """Return the snapshot of a full name, unless it has expired. `lock` locks its row until the transaction ends."""
    project, snapshot_id = names.parse_snapshot(name, field=field)
    living = Snapshot.objects.select_related("project", "topic__project").filter(expire_at__gt=utcnow())
    return _get_row(living.filter(_of_project(project), snapshot_id=snapshot_id), snapshot_id, lock=lock, field=field)


def snapshots_of(project: Project) -> QuerySet[Snapshot]:
    rows = Snapshot.objects.filter(project=project, expire_at__gt=utcnow())
    return rows.select_related("project", "topic__project")


def snapshots_of_topic(topic: Topic) -> QuerySet[Snapshot]:
    return Snapshot.objects.filter(topic=topic, expire_at__gt=utcnow()).select_related("project")


def get_service_account(*, name: str, lock: bool = False) -> ServiceAccount:
    """Return the account of a full name. `-` may replace the project, and the unique id may replace the email."""
    identifier = names.parse_service_account(name)[1]
    rows = ServiceAccount.objects.filter(Q(email=identifier) | Q(unique_id=identifier), deleted_at=None)
    return _account(rows, name, lock=lock, otherwise="does not exist")


def find_deleted_service_account(*, unique_id: str) -> ServiceAccount | None:
    accounts = ServiceAccount.objects.select_related("project").filter(unique_id=unique_id)
    return row_or_none(accounts.exclude(deleted_at=None))


def get_deleted_service_account(*, name: str) -> ServiceAccount:
    """Return a deleted account that can be undeleted, locked, by the full name with its unique id."""
    rows = ServiceAccount.objects.filter(unique_id=names.parse_service_account(name)[1]).exclude(deleted_at=None)
    return _account(rows, name, lock=True, otherwise="is not among those that can be undeleted")


def _account(rows: QuerySet[ServiceAccount], name: str, *, lock: bool, otherwise: str) -> ServiceAccount:
    project = names.parse_service_account(name)[0]
    rows = (rows.select_for_update(of=("self",)) if lock else rows).select_related("project")
    account = row_or_none(rows if project == "-" else rows.filter(_of_project(project)))
    if account is None:
        raise NotFound(f"Service account {clipped(name)} {otherwise}.")
    return account


def topics_of(project: Project) -> QuerySet[Topic]:
    return Topic.objects.filter(project=project).select_related("project")


def subscriptions_attached_to(topic: Topic) -> QuerySet[Subscription]:
    return Subscription.objects.filter(topic=topic, detached=False).select_related("project")


def subscriptions_of(project: Project) -> QuerySet[Subscription]:
    """Return the subscriptions of a project. The functions of their topics, which may be large, aren't read."""
    rows = Subscription.objects.select_related("project", "topic__project", "dead_letter_topic__project")
    return rows.filter(project=project).defer("topic__message_transforms", "dead_letter_topic__message_transforms")


def service_accounts_of(project: Project) -> QuerySet[ServiceAccount]:
    return ServiceAccount.objects.filter(project=project, deleted_at=None).select_related("project")


def _of(*columns: str, by: Callable[..., Any] | None = None) -> Any:
    """Return a field of PushSettings that is a column, or what `by` makes of several columns."""
    return dataclasses.field(metadata={"columns": columns, "by": by})


@dataclass(frozen=True, slots=True)
class PushSettings:
    """What the data plane needs to know about a subscription, from a single query of these columns."""

    id: int = _of("id")
    name: str = _of("project__project_id", "subscription_id", by=names.subscription_name)
    topic_id: int | None = _of("topic_id")
    endpoint: str = _of("push_endpoint")
    ack_deadline_seconds: int = _of("ack_deadline_seconds")
    service_account_email: str = _of("oidc_service_account_email")
    #: The configured audience, or else the endpoint's URL.
    audience: str = _of("oidc_audience", "push_endpoint", by=lambda audience, endpoint: audience or endpoint)
    no_wrapper: bool = _of("push_wrapper", by=lambda wrapper: wrapper == Subscription.Wrapper.NONE)
    write_metadata: bool = _of("push_write_metadata")
    detached: bool = _of("detached")
    minimum_backoff_ms: int | None = _of("minimum_backoff_ms")
    maximum_backoff_ms: int | None = _of("maximum_backoff_ms")
    #: How long unacknowledged messages are kept: the longer of the subscription's and the topic's retention.
    retention_seconds: int = _of(
        "message_retention_seconds", "topic__message_retention_seconds", by=lambda own, topic: max(own, topic or 0)
    )
    attributes: Mapping[str, str] = _of("push_attributes")
    ordered: bool = _of("enable_message_ordering")
    exactly_once: bool = _of("enable_exactly_once_delivery")
    #: 0 without a dead-letter policy.
    max_delivery_attempts: int = _of("max_delivery_attempts")
    #: The filter (resources/filters.py), empty for all messages.
    filter: str = _of("filter")
    #: Whether it is paused: its messages wait, and its push configuration is kept.
    paused: bool = _of("paused")
    #: The functions of the message transforms that are on, in their order. A publish doesn't read them.
    transforms: Sequence[Function] = _of("message_transforms", by=functions_on)
    #: The name of the topic, or "_deleted-topic_".
    topic: str = _of(
        "topic__project__project_id",
        "topic__topic_id",
        by=lambda project, topic: names.topic_name(project, topic) if topic else names.DELETED_TOPIC,
    )

    @property
    def is_push(self) -> bool:
        return bool(self.endpoint) and not self.detached and not self.paused

    @property
    def shows_attempts(self) -> bool:
        """Whether pushes have `deliveryAttempt`: with a dead-letter policy, or if a setting says always."""
        return self.max_delivery_attempts > 0 or settings.DELIVERY_ATTEMPT_ALWAYS


_FIELDS = [(each.metadata["columns"], each.metadata["by"]) for each in dataclasses.fields(PushSettings)]
PUSH_COLUMNS = list(dict.fromkeys(column for columns, _ in _FIELDS for column in columns))
#: Those that a publish needs of each subscription. Functions of thousands of subscriptions may have a gigabyte.
PUBLISH_COLUMNS = [column for column in PUSH_COLUMNS if column != "message_transforms"]


def push_settings(ids: Iterable[int]) -> dict[int, PushSettings]:
    """Return the settings of those subscriptions of `ids` that exist."""
    rows = Subscription.objects.filter(id__in=list(ids)).order_by("id").values_list(*PUSH_COLUMNS)
    return {push.id: push for push in map(_push_settings, rows)}


def push_settings_of(subscription_id: int) -> PushSettings | None:
    """Return the settings of one subscription; None after its deletion."""
    return next(iter(_settings_of(subscription_id)), None)


def subscriptions_of_topic(topic_id: int) -> list[PushSettings]:
    """Return the settings of the subscriptions attached to a topic, which get a message published now.

    They lack the functions of message transforms.
    """
    return _attached(topic_id)


def _push_settings(row: Sequence[Any], columns: Sequence[str] = PUSH_COLUMNS) -> PushSettings:
    values = dict(zip(columns, row, strict=True))
    return PushSettings(*(by(*map(values.get, columns)) if by else values[columns[0]] for columns, by in _FIELDS))


_settings_of = ParsedRows(
    PreparedRows(
        lambda subscription_id: Subscription.objects.filter(id=subscription_id).order_by().values_list(*PUSH_COLUMNS),
        slots=(-1,),
    ),
    _push_settings,
)
_attached = ParsedRows(
    PreparedRows(
        lambda topic_id: (
            Subscription.objects.filter(topic_id=topic_id, detached=False).order_by("id").values_list(*PUBLISH_COLUMNS)
        ),
        slots=(-1,),
    ),
    partial(_push_settings, columns=PUBLISH_COLUMNS),
)
