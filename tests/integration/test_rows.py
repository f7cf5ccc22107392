"""A row is looked up without sorting what the lookup finds."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from pushhub.common.rows import row_or_none
from subscriptions.models import Project

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


def test_a_row_is_found_or_not_and_never_sorted_for() -> None:
    project = Project.objects.create(project_id="shop")
    assert Project._meta.ordering == ["project_id"]

    with CaptureQueriesContext(connection) as queries:
        assert row_or_none(Project.objects.filter(project_id="shop")) == project
        assert row_or_none(Project.objects.filter(project_id="depot")) is None

    assert [query["sql"] for query in queries if "ORDER BY" in query["sql"]] == []
