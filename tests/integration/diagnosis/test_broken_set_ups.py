"""Each of more than fifty broken set-ups: console, `diagnose`, `describe` and Flower name its cause in the same word.

All of them stand side by side at one push worker; each is asked about once it has shown what is wrong with it.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from pytest_django.live_server_helper import LiveServer

from deliveries.backlog.default import default_backlog
from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.diagnosis import service
from tests.integration.diagnosis.cases import CASES
from tests.integration.diagnosis.standing import Case, Stand
from tests.integration.diagnosis.surfaces import Surfaces
from tests.integration.push.test_flower import search
from tests.ports import free_port, wait_for
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

#: The sentence while the whole stack is broken, the step that fails then, and words of the summary.
BROKEN_STACK = {
    "no maintenance": ("No maintenance worker gives a sign of life", "maintenance", "Start one"),
    "no worker": ("No push worker of region local has lived for", "worker", "Start one"),
    "read-only database": ("The database takes no writes", "database", "Look at the log of the database"),
    "no permission": ("The service agent may not move messages", "dead letters", "roles/pubsub.publisher"),
    "no Redis": ("Redis takes no messages: Redis cannot be reached.", "worker", "Start Redis"),
}


def test_every_surface_names_the_cause(
    redis_url: str,
    tmp_path: Path,
    flower: str,
    live_server: LiveServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: Any,
) -> None:
    monkeypatch.setenv("PUSHHUB_URL", live_server.url)
    monkeypatch.setenv("PUSHHUB_PROJECT", "shop")
    monkeypatch.setattr(service, "PROVEN_MS", math.inf)  # the test takes longer than a minute
    (tmp_path / "other").mkdir()  # for the certificate that signs itself
    default_backlog().client.set(AUDIT_KEY, "[]", ex=600)
    with ExitStack() as stack:
        stand = Stand(tmp_path, stack)
        settings.PUSH_CA_FILE = str(stand.authority.ca_file)
        surfaces = Surfaces(capsys)
        with Worker(redis_url, PUSHHUB_PUSH_CA_FILE=settings.PUSH_CA_FILE):
            for name, case in CASES.items():
                case.break_it(stand, name)
            faults: list[str] = []
            for name, case in CASES.items():
                faults += faults_of(stand, name, case, surfaces, flower)
            faults += while_all_is_broken(surfaces, stand, settings, "no maintenance")
        faults += while_all_is_broken(surfaces, stand, settings, "no worker")
        faults += while_all_is_broken(surfaces, stand, settings, "read-only database")
        faults += while_all_is_broken(surfaces, stand, settings, "no permission")
        faults += pull_over_quota(surfaces, stand, settings)
        faults += while_all_is_broken(surfaces, stand, settings, "no Redis")
    assert not faults, "\n".join(faults)


def while_all_is_broken(surfaces: Surfaces, stand: Stand, settings: Any, what: str) -> list[str]:
    """Break the whole stack, and return what is wrong with what is said of a subscription that was well before."""
    sentence, step, words = BROKEN_STACK[what]
    name, client = "acknowledged", default_backlog().client
    match what:
        case "no maintenance":
            client.delete(AUDIT_KEY)
        case "no worker":
            client.set(AUDIT_KEY, "[]", ex=600)
            client.delete("ph:workers")
            client.zadd("ph:regions", {"local": time.time() * 1000 - 60_000})
        case "read-only database":
            client.zadd("ph:workers", {"push@test": time.time() * 1000})
            client.zadd("ph:regions", {"local": time.time() * 1000})
            let_database_write(False)
        case "no permission":
            name = "dead-lettered"
            settings.DEVELOPMENT = False
        case "no Redis":
            settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    # For a second, a message that was stored counts.
    with suppress(AssertionError):
        wait_for(lambda: sentence in surfaces.console(name)["sentence"], timeout_seconds=60, what=what)
    shown = surfaces.console(name)["sentence"]
    summary = stand.api.post(f"subscriptions/{name}:diagnose", {}).body["summary"]
    let_database_write(True)
    settings.DEVELOPMENT = True
    text = f"{what}: {shown} | {summary}"
    return [] if sentence in shown and summary.startswith(f"{step}: ") and words in summary else [text]


def let_database_write(may_write: bool) -> None:
    """Let this thread's connection write, or not."""
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA query_only = {int(not may_write)}")


def pull_over_quota(surfaces: Surfaces, stand: Stand, settings: Any) -> list[str]:
    """Use the project's quota for pulls up, and return what is then said wrongly of a subscription with messages."""
    settings.QUOTAS, settings.QUOTA_SUBSCRIBER_KB_PER_MINUTE = True, 1
    path = "subscriptions/nobody-pulls:pull"
    refused = [stand.api.post(path, {"maxMessages": 1}) for _ in range(2)][1]
    shown = surfaces.console("nobody-pulls")["sentence"]
    code, answer = surfaces.command_line("diagnose nobody-pulls")
    settings.QUOTAS = False
    text = f"quota: {shown} | {code} {answer['summary']} | {refused.status}"
    told = "is used up, so pulls are refused" in shown and "PUSHHUB_QUOTA_SUBSCRIBER_KB_PER_MINUTE" in answer["summary"]
    return [] if refused.status == 429 and code == 1 and told else [text]


def faults_of(stand: Stand, name: str, case: Case, surfaces: Surfaces, flower: str) -> list[str]:
    """Wait until the set-up shows what is wrong with it; return where a surface says something else."""
    wait_for(lambda: case.is_ready(name), what=name)
    if case.result:
        query = f"{stand.messages[name]} result:{case.result}"
        wait_for(lambda: search(flower, query), what=f"in Flower: {query}")
    # The sentence follows within moments.
    with suppress(AssertionError):
        wait_for(lambda: not surfaces.faults(name, case), timeout_seconds=60)
        return []
    return surfaces.faults(name, case) or [f"{name}: right only at times"]
