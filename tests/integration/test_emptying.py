"""Rows that a test commits are deleted after it, and rows from migrations are kept."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from subscriptions.models import Project
from tests import emptying
from tests.restapi import Api


@pytest.mark.parametrize("truncate_every", [1, 1_000_000])
def test_every_row_is_deleted_except_those_of_migrations(
    transactional_db: None, redis_url: str, monkeypatch: pytest.MonkeyPatch, truncate_every: int
) -> None:
    monkeypatch.setattr(emptying, "TRUNCATE_EVERY", truncate_every)
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/worker", {"topic": "projects/shop/topics/orders"})
    before = Permission.objects.count(), ContentType.objects.count()
    emptying.tables_empty(connection)
    assert (Permission.objects.count(), ContentType.objects.count()) == before
    assert before[0] > 100
    kept = {Permission, ContentType}
    managed = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    assert Project in managed
    assert [model for model in managed if model not in kept and model._base_manager.exists()] == []
