"""Who may import whom; the checker itself is in tests/layering.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layering import LAYERS, LEAVES, imports_of, modules_of, violations

ROOT = Path(__file__).parents[2]


def test_every_import_goes_the_allowed_way() -> None:
    assert violations(modules_of(ROOT)) == []


def test_the_rooms_are_all_looked_at() -> None:
    modules = modules_of(ROOT)
    assert {"pushhub.supervisor", "subscriptions.models", "deliveries.push.client"} <= set(modules)
    assert {name for name in LEAVES if f"pushhub.{name}" in modules} >= LEAVES - {"metrics"}
    assert {name for name in LAYERS if f"deliveries.{name}" in modules} >= {"models", "services", "tasks"}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("subscriptions.services", "from deliveries import services"),
        ("subscriptions.services", "import deliveries.services"),
        ("subscriptions.services", "from pushhub import settings"),
        ("subscriptions.models", "from subscriptions import services"),
        ("subscriptions.models", "from . import services"),
        ("subscriptions.iam.keys", "from ..api import views"),
        ("subscriptions.masks", "from django.conf import settings"),
        ("subscriptions.selectors", "from subscriptions.api import views"),
        ("deliveries.tasks", "from pushhub.celery import app"),
        ("deliveries.tasks", "from pushhub.supervisor import main"),
        ("deliveries.services", "from deliveries.tasks import deliver"),
        ("deliveries.services", "from subscriptions.api.parsers import ProtoJSONParser"),
        ("deliveries.services", "from subscriptions.admin import site"),
        ("deliveries.backlog.backlog", "from deliveries.services import message_publish"),
        ("deliveries.push.client", "def f():\n    from deliveries.api import views"),
        ("deliveries.rules.window", "import redis.asyncio"),
        ("deliveries.rules.window", "from django.utils import timezone"),
        ("deliveries.rules.window", "from time import monotonic"),
        ("deliveries.rules.window", "from deliveries.backlog import scripts"),
        ("deliveries.rules.window", "from subscriptions.selectors import push_settings"),
        ("deliveries.pipeline.transforms", "import django"),
        ("pushhub.names", "from subscriptions.models import Topic"),
        ("pushhub.errors", "from pushhub.celery import app"),
    ],
)
def test_the_checker_sees_a_wrong_import(module: str, line: str) -> None:
    assert len(violations({module: line})) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pushhub.supervisor", "from deliveries.services import x"),
        ("deliveries.api.views", "from subscriptions.api.base import View"),
        ("deliveries.push.worker", "from subscriptions.selectors import push_settings"),
        ("deliveries.services", "from django.conf import settings"),
        ("deliveries.rules.window", "from pushhub.clock import Clock"),
        ("deliveries.rules.window", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis"),
    ],
)
def test_the_checker_lets_a_right_import_pass(module: str, line: str) -> None:
    assert violations({module: line}) == []


def test_relative_imports_are_resolved() -> None:
    source = "from . import a\nfrom .b import c\nfrom .. import d"
    assert [one.imported for one in imports_of("x.y.z", source)] == ["x.y.a", "x.y.b.c", "x.d"]
    assert [one.imported for one in imports_of("x.y", source, is_package=True)] == ["x.y.a", "x.y.b.c", "x.d"]
