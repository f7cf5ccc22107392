"""Queries whose SQL is compiled once return the same rows as the ORM."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from pushhub.common import prepared
from pushhub.common.errors import NotFound
from pushhub.common.prepared import ParsedRows, PreparedRows
from subscriptions.models import Project, Subscription, Topic
from subscriptions.selectors import get_subscription, get_topic, read_subscription

pytestmark = pytest.mark.django_db


def test_a_connection_to_postgresql_compiles_no_query_and_ends_frozen_transactions() -> None:
    with CaptureQueriesContext(connection) as queries:
        connection_created.send(sender=type(connection), connection=connection)
    if connection.vendor != "postgresql":
        assert not any("jit" in query["sql"] for query in queries)
        return
    with connection.cursor() as cursor:
        shown = [cursor.execute(f"SHOW {name}").fetchone() for name in ("jit", "idle_in_transaction_session_timeout")]
    assert shown == [("off",), ("1min",)]


def labelled() -> PreparedRows:
    return PreparedRows(
        lambda project, topic_id: Topic.objects.filter(
            project__project_id=project, topic_id__lt=topic_id, message_retention_seconds=None
        ).values_list("topic_id", "labels", "created_at"),
        slots=("some project", "some topic"),
    )


@pytest.fixture
def project() -> Project:
    project = Project.objects.create(project_id="project-1")
    for number in range(3):
        Topic.objects.create(project=project, topic_id=f"topic-{number}", labels={"number": str(number)})
    return project


def test_rows_have_the_values_and_types_of_the_orm(project: Project) -> None:
    rows = labelled()
    for before in ("topic-2", "topic-1", "topic-9", "a"):
        expected = Topic.objects.filter(project=project, topic_id__lt=before)
        assert [tuple(row) for row in rows("project-1", before)] == [
            (topic.topic_id, topic.labels, topic.created_at) for topic in expected
        ]


def test_values_are_parameters_and_never_sql(project: Project) -> None:
    assert not list(labelled()("' OR 1=1 --", "%s"))


def test_a_slot_that_is_no_parameter_is_an_error(project: Project) -> None:
    rows = PreparedRows(lambda topic_id: Topic.objects.values_list("topic_id"), slots=("x",))
    with pytest.raises(ValueError, match="slots"):
        rows("x")


def parsed_labels() -> ParsedRows[dict[str, str]]:
    return ParsedRows(labelled(), lambda row: {"topic": row[0], **row[1]})


def test_equal_rows_share_one_object_and_changed_rows_are_parsed_again(project: Project) -> None:
    labels = parsed_labels()
    first = labels("project-1", "topic-9")
    assert first == [{"topic": f"topic-{number}", "number": str(number)} for number in range(3)]
    Topic.objects.filter(topic_id="topic-1").update(labels={"number": "one"})
    Topic.objects.filter(topic_id="topic-2").delete()
    second = labels("project-1", "topic-9")
    assert second == [first[0], {"topic": "topic-1", "number": "one"}]
    assert second[0] is first[0]


def test_parsed_rows_are_forgotten_before_they_become_too_many(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MOST_PARSED", 4)
    labels = parsed_labels()
    first = labels("project-1", "topic-2")
    assert labels("project-1", "topic-2")[0] is first[0]
    Topic.objects.update(labels={"number": "none"})
    assert [row["number"] for row in labels("project-1", "topic-9")] == ["none"] * 3
    Topic.objects.filter(topic_id__lt="topic-2").update(labels={"number": "0"})
    assert [row["number"] for row in labels("project-1", "topic-2")] == ["0", "0"]
    Topic.objects.filter(topic_id="topic-1").update(labels={"number": "1"})
    again = labels("project-1", "topic-2")
    assert (again[0], again[1]) == (first[0], first[1])
    assert again[0] is not first[0], "it was forgotten meanwhile"


def test_parsed_rows_are_forgotten_before_they_take_too_many_bytes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MOST_PARSED_BYTES", 2500)
    labels = parsed_labels()
    first = labels("project-1", "topic-1")
    for number in range(20):
        Topic.objects.filter(topic_id="topic-0").update(labels={"number": f"{number}" * 500})
        assert labels("project-1", "topic-1")[0]["number"] == f"{number}" * 500
        kept = [len(parsed["number"]) for parsed in labels._parsed.values()]
        assert sum(kept) <= 2500
    Topic.objects.filter(topic_id="topic-0").update(labels={"number": "0"})
    assert labels("project-1", "topic-1") == first
    assert labels("project-1", "topic-1")[0] is not first[0], "it was forgotten meanwhile"


@pytest.mark.django_db(transaction=True)
def test_each_thread_asks_by_its_own_connection(project: Project) -> None:
    rows, row_counts = labelled(), []

    def ask() -> None:
        row_counts.append(len(list(rows("project-1", "topic-9"))))
        connections.close_all()

    rows("project-1", "topic-9")
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert row_counts == [3, 3, 3]


def test_a_topic_is_whole_and_can_be_saved(project: Project) -> None:
    expected = Topic.objects.select_related("project").get(topic_id="topic-1")
    topic = get_topic(name="projects/project-1/topics/topic-1")
    assert {field.attname: getattr(topic, field.attname) for field in Topic._meta.concrete_fields} == {
        field.attname: getattr(expected, field.attname) for field in Topic._meta.concrete_fields
    }
    assert topic.project == expected.project and topic.project.number == expected.project.number
    topic.labels = {"a": "b"}
    topic.save()
    assert Topic.objects.get(topic_id="topic-1").labels == {"a": "b"}
    assert Topic.objects.count() == 3


def columns_of(row: Model) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_a_subscription_is_whole_and_read_again_after_each_change(project: Project) -> None:
    topic = Topic.objects.get(topic_id="topic-1")
    Topic.objects.filter(pk=topic.pk).update(message_storage_policy={"allowedPersistenceRegions": ["local"]})
    Subscription.objects.create(project=project, subscription_id="worker", topic=topic, labels={"a": "b"})
    name = "projects/project-1/subscriptions/worker"
    expected, subscription = get_subscription(name=name), read_subscription(name=name)
    assert columns_of(subscription) == columns_of(expected)
    assert columns_of(subscription.project) == columns_of(project)
    assert subscription.topic is not None and expected.topic is not None
    assert columns_of(subscription.topic) == columns_of(expected.topic)
    assert read_subscription(name=name) is subscription, "equal rows share one object"
    Subscription.objects.update(enable_message_ordering=True)
    assert read_subscription(name=name).enable_message_ordering
    Subscription.objects.update(topic=None)
    assert read_subscription(name=name).topic is None
    assert read_subscription(name=f"projects/{project.number}/subscriptions/worker").pk == subscription.pk
    with pytest.raises(NotFound, match=r"Resource not found \(resource=other\)\."):
        read_subscription(name="projects/project-1/subscriptions/other")
