"""Which units may import which; the checker itself is in tests/layering.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layering import CLIENT, cycles, folder_cycles, imports_of, module_cycles, modules_of, violations

ROOT = Path(__file__).parents[2]


def test_every_import_goes_the_allowed_way() -> None:
    assert violations(modules_of(ROOT)) == []


def test_no_folders_import_each_other() -> None:
    assert cycles(modules_of(ROOT)) == []


def test_no_folders_below_a_unit_import_each_other() -> None:
    assert folder_cycles(modules_of(ROOT)) == []


def test_a_cycle_of_a_folder_and_one_inside_it_is_seen() -> None:
    sources = {
        "pushhub.run.__init__": "",
        "pushhub.run.limits": "import json",
        "pushhub.run.web": "from pushhub.run.http.server import Server",
        "pushhub.run.http.__init__": "",
        "pushhub.run.http.server": "from pushhub.run.limits import Limits",
        "pushhub.wsgi": "from pushhub import run",
    }
    assert folder_cycles(sources) == [["pushhub.run", "pushhub.run.http"]]


def test_the_modules_of_the_http_client_do_not_import_each_other_in_a_cycle() -> None:
    assert module_cycles(modules_of(ROOT), CLIENT) == []


def test_a_cycle_of_modules_is_seen_even_if_only_type_checkers_see_it() -> None:
    sources = {
        "deliveries.client.a": "from deliveries.client.b import B\nfrom deliveries.client import d",
        "deliveries.client.b": "from deliveries.client import c",
        "deliveries.client.c": "if TYPE_CHECKING:\n    from deliveries.client.a import A",
        "deliveries.client.d": "import deliveries.rules.retry",
        "deliveries.push.a": "from deliveries.push import a",
    }
    assert module_cycles(sources, CLIENT) == [["deliveries.client.a", "deliveries.client.b", "deliveries.client.c"]]


def test_all_folders_are_checked() -> None:
    modules = modules_of(ROOT)
    assert {"pushhub.runtime.supervisor", "subscriptions.iam.access", "deliveries.client.pool"} <= set(modules)


def test_a_cycle_is_seen() -> None:
    sources = {
        "deliveries.a.x": "from deliveries.b import y",
        "deliveries.b.y": "from deliveries.c import z",
        "deliveries.c": "import deliveries.a.x",
        "deliveries.d": "from deliveries.a import x",
    }
    assert cycles(sources) == [["deliveries.a", "deliveries.b", "deliveries.c"]]


def test_a_folder_without_a_layer_is_seen() -> None:
    assert violations({"deliveries.attic.x": "", "deliveries.attic.__init__": ""}) == ["deliveries.attic has no layer"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("subscriptions.services.topics", "from deliveries.publish import service"),
        ("subscriptions.services.topics", "import deliveries.publish.service"),
        ("subscriptions.services.topics", "from pushhub import settings"),
        ("subscriptions.models.iam", "from subscriptions.services import topics"),
        ("subscriptions.models.iam", "from ..services import topics"),
        ("subscriptions.iam.access", "from ..api import views"),
        ("subscriptions.resources.masks", "from django.conf import settings"),
        ("subscriptions.selectors", "from subscriptions.api import views"),
        ("deliveries.tasks", "from pushhub.celery import app"),
        ("deliveries.tasks", "from pushhub.runtime.supervisor import main"),
        ("deliveries.publish.service", "from deliveries.tasks import deliver"),
        ("deliveries.publish.service", "from subscriptions.api.parsers import ProtoJSONParser"),
        ("deliveries.publish.service", "from subscriptions.admin import tree"),
        ("deliveries.backlog.backlog", "from deliveries.publish.service import publish_message"),
        ("deliveries.push.worker", "def f():\n    from deliveries.api import views"),
        ("deliveries.client.pool", "from django.conf import settings"),
        ("deliveries.client.pool", "from deliveries.store import statements"),
        ("deliveries.push.sending.engine", "from deliveries.client.client import PushClient"),
        ("deliveries.rules.flow", "import redis.asyncio"),
        ("deliveries.rules.flow", "from django.utils import timezone"),
        ("deliveries.rules.flow", "from time import monotonic"),
        ("deliveries.rules.flow", "from deliveries.backlog import scripts"),
        ("deliveries.rules.flow", "from subscriptions.selectors import push_settings"),
        ("deliveries.telemetry.counting.arrowsums", "import django"),
        ("pushhub.common.names", "from subscriptions.models import Topic"),
        ("pushhub.common.errors", "from pushhub.celery import app"),
        ("deliveries.telemetry.gauges", "from pushhub import leases"),
    ],
)
def test_the_checker_sees_a_wrong_import(module: str, line: str) -> None:
    assert len(violations({module: line})) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("pushhub.runtime.supervisor", "from deliveries.publish.service import x"),
        ("deliveries.api.views", "from subscriptions.api.base import View"),
        ("deliveries.push.worker", "from subscriptions.selectors import push_settings"),
        ("deliveries.push.sending.httpclient", "from deliveries.client.client import PushClient"),
        ("deliveries.publish.service", "from django.conf import settings"),
        ("deliveries.rules.flow", "from pushhub.common.clock import Clock"),
        ("deliveries.rules.flow", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis"),
    ],
)
def test_the_checker_lets_a_right_import_pass(module: str, line: str) -> None:
    assert violations({module: line}) == []


def test_relative_imports_are_resolved() -> None:
    source = "from . import a\nfrom .b import c\nfrom .. import d"
    assert [edge.imported for edge in imports_of("x.y.z", source)] == ["x.y.a", "x.y.b.c", "x.d"]
    assert [edge.imported for edge in imports_of("x.y", source, is_package=True)] == ["x.y.a", "x.y.b.c", "x.d"]
