"""What `manage.py check --database default` and `manage.py migrate` say of the database that they find.

A database that is too old, or half restored, is refused. Names that new rows can't get are warned of and not changed:
such names are safe to keep, and the operator decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from pushhub.common import names
from pushhub.common.databases import FINISH_RESTORE, HALF_RESTORED, is_half_restored
from subscriptions.models import Project, ServiceAccount


@register(Tags.database)
def check_age(app_configs: object, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Refuse a database that has had only some of the steps that one migration now replaces: they are gone."""
    errors: list[CheckMessage] = []
    for alias in databases or ():
        loader = MigrationLoader(connections[alias])
        for name, migration in loader.disk_migrations.items():
            missing = [step for step in migration.replaces if step not in loader.applied_migrations]
            if 0 < len(missing) < len(migration.replaces) and name not in loader.applied_migrations:
                text = f"The database lacks the migration {'.'.join(missing[0])}, which this version no longer has."
                hint = "Run `manage.py migrate` of the version 85cde97 first."
                errors.append(Error(text, hint=hint, id="subscriptions.E001"))
    return errors


@register(Tags.database)
def check_rows(app_configs: object, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Refuse a database on which a restore was interrupted."""
    error = Error(HALF_RESTORED, hint=FINISH_RESTORE, id="subscriptions.E002")
    return [error for alias in databases or () if is_half_restored(connections[alias])]


@register(Tags.database)
def check_names(app_configs: object, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Warn about projects and service accounts that could be mistaken for others."""
    warnings: list[CheckMessage] = []
    for alias in databases or ():
        tables = connections[alias].introspection.table_names()
        if Project._meta.db_table in tables and ServiceAccount._meta.db_table in tables:
            projects = dict(Project.objects.using(alias).order_by("pk").values_list("project_id", "number"))
            emails = ServiceAccount.objects.using(alias).order_by("pk").values_list("email", flat=True)
            warnings += [Warning(text, id="subscriptions.W001") for text in clashes(projects, emails)]
    return warnings


def clashes(projects: dict[str, int], emails: Iterable[str]) -> list[str]:
    """Return one sentence per clash. `projects` maps project ids to numbers."""
    sentences = [
        f"The project id {project_id} is reserved for Google's own projects."
        for project_id in projects
        if names.is_system_project(project_id)
    ]
    by_number = {str(number): project_id for project_id, number in projects.items()}
    sentences += [
        f"The project id {project_id} is the number of the project {by_number[project_id]}: the name "
        f"projects/{project_id} means that one, and the project of this id can be reached by its own number only."
        for project_id in projects
        if by_number.get(project_id, project_id) != project_id
    ]
    alike: dict[str, list[str]] = defaultdict(list)
    for project_id in projects:
        alike[names.account_domain(project_id).lower()].append(project_id)
    sentences += [
        f"The projects {', '.join(ids)} have service accounts of one domain, {domain}. Policies bind those of the "
        "project that is written in lower case."
        for domain, ids in alike.items()
        if len(ids) > 1
    ]
    sentences += [
        f"The service account {email} has the address of a service agent. It is disabled, and no policy binds it."
        for email in emails
        if names.is_agent_email(email)
    ]
    return sentences
