"""Queries whose SQL is compiled once return the same rows as the ORM."""

from __future__ import annotations

import threading

import pytest
from django.db import connections

from pushhub.common.prepared import PreparedRows
from subscriptions.models import Project, Topic
from subscriptions.selectors import topic_get

pytestmark = pytest.mark.django_db


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
    topic = topic_get(name="projects/project-1/topics/topic-1")
    assert {field.attname: getattr(topic, field.attname) for field in Topic._meta.concrete_fields} == {
        field.attname: getattr(expected, field.attname) for field in Topic._meta.concrete_fields
    }
    assert topic.project == expected.project and topic.project.number == expected.project.number
    topic.labels = {"a": "b"}
    topic.save()
    assert Topic.objects.get(topic_id="topic-1").labels == {"a": "b"}
    assert Topic.objects.count() == 3
