"""Queries whose SQL is made once give what the ORM gives."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from pushhub.common.prepared import PreparedRows
from subscriptions.models import Project, Topic
from subscriptions.selectors import topic_get

pytestmark = pytest.mark.django_db


def test_postgresql_compiles_no_query() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("about PostgreSQL")
    with connection.cursor() as cursor:
        cursor.execute("SET jit = on")
        connection_created.send(sender=type(connection), connection=connection)
        cursor.execute("SHOW jit")
        assert cursor.fetchone() == ("off",)


def labelled() -> PreparedRows:
    return PreparedRows(
        lambda project, topic_id: Topic.objects.filter(
            project__project_id=project, topic_id__lt=topic_id, message_retention_seconds=None
        ).values_list("topic_id", "labels", "created_at"),
        slots=("some project", "some topic"),
    )


@pytest.fixture
def project() -> Project:
    made = Project.objects.create(project_id="project-1")
    for number in range(3):
        Topic.objects.create(project=made, topic_id=f"topic-{number}", labels={"number": str(number)})
    return made


def test_rows_are_those_of_the_orm_with_their_types(project: Project) -> None:
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


@pytest.mark.django_db(transaction=True)
def test_each_thread_asks_by_its_own_connection(project: Project) -> None:
    rows, found = labelled(), []

    def ask() -> None:
        found.append(len(list(rows("project-1", "topic-9"))))
        connections.close_all()

    rows("project-1", "topic-9")
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3, 3, 3]


def test_a_topic_is_whole_and_can_be_saved(project: Project) -> None:
    expected = Topic.objects.select_related("project").get(topic_id="topic-1")
    found = topic_get(name="projects/project-1/topics/topic-1")
    assert {field.attname: getattr(found, field.attname) for field in Topic._meta.concrete_fields} == {
        field.attname: getattr(expected, field.attname) for field in Topic._meta.concrete_fields
    }
    assert found.project == expected.project and found.project.number == expected.project.number
    found.labels = {"a": "b"}
    found.save()
    assert Topic.objects.get(topic_id="topic-1").labels == {"a": "b"}
    assert Topic.objects.count() == 3
