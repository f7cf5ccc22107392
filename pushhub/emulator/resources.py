"""The initial resources of the emulator: read from short forms and a YAML file, and created by the services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Bodies = dict[str, dict[str, Any]]
KINDS = ("serviceAccounts", "topics", "subscriptions")


class ResourcesError(ValueError):
    """The initial resources can't be read or created. The text names the first such resource and the reason."""


@dataclass
class StartResources:
    """Bodies as REST takes them, by kind and full name."""

    bodies: dict[str, Bodies] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    projects: list[str] = field(default_factory=list)

    def add_project(self, project: str) -> None:
        if project not in self.projects:
            self.projects.append(project)


def read_resources(*, projects: Iterable[tuple[str, str]], path: Path | None) -> StartResources:
    """Read the file and short forms such as `demo,orders:billing`, each after the option or variable that has it.

    Raises ResourcesError for an invalid one.
    """
    resources = StartResources()
    for source, text in projects:
        _add_short_form(resources, source, text)
    if path is not None:
        _add_file(resources, path)
    return resources


def _add_short_form(resources: StartResources, source: str, text: str) -> None:
    project, *topics = [word.strip() for word in text.split(",")]
    has_topic = ":" in project and "." not in project  # a domain's project is example.com:shop
    if not project or has_topic or not all(topics):
        raise ResourcesError(f"{source}={text}: give PROJECT,TOPIC:SUBSCRIPTION:SUBSCRIPTION,TOPIC,...")
    resources.add_project(project)
    for word in topics:
        topic, *subscriptions = word.split(":")
        resources.bodies["topics"][f"projects/{project}/topics/{topic}"] = {}
        for subscription in subscriptions:
            name = f"projects/{project}/subscriptions/{subscription}"
            resources.bodies["subscriptions"][name] = {"topic": f"projects/{project}/topics/{topic}"}


def _add_file(resources: StartResources, path: Path) -> None:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResourcesError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ResourcesError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    content = _mapping(path, "the file", content)
    if unknown := sorted(content.keys() - {"projects"}):
        raise ResourcesError(f"{path}: {unknown[0]}: give projects, which have the resources")
    for project, kinds in _mapping(path, "projects", content.get("projects")).items():
        resources.add_project(project)
        kinds = _mapping(path, f"projects.{project}", kinds)
        if unknown := sorted(kinds.keys() - {*KINDS}):
            raise ResourcesError(f"{path}: projects.{project}.{unknown[0]}: give one of {', '.join(KINDS)}")
        for kind, bodies in resources.bodies.items():
            place = f"projects.{project}.{kind}"
            for name, body in _mapping(path, place, kinds.get(kind)).items():
                body = dict(_mapping(path, f"{place}.{name}", body))
                _complete(project, body)
                bodies[f"projects/{project}/{kind}/{name}"] = body


def _complete(project: str, body: dict[str, Any]) -> None:
    """Replace the id of a topic of the same project by its full name."""
    places = [(body, "topic")]
    if isinstance(body.get("deadLetterPolicy"), dict):
        places.append((body["deadLetterPolicy"], "deadLetterTopic"))
    for holder, key in places:
        if isinstance(holder.get(key), str) and "/" not in holder[key]:
            holder[key] = f"projects/{project}/topics/{holder[key]}"


def _mapping(path: Path, place: str, value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ResourcesError(f"{path}: {place}: give a mapping of names; a number needs quotation marks")
    return value


def create_resources(resources: StartResources) -> None:
    """Create the resources that don't exist yet. Raises ResourcesError for the first that is refused."""
    from pushhub.common.errors import AlreadyExists, PushHubError
    from subscriptions.services.projects import ensure_project
    from subscriptions.services.service_accounts import create_service_account
    from subscriptions.services.subscriptions import create_subscription
    from subscriptions.services.topics import create_topic

    name = ""
    try:
        for name in resources.projects:
            ensure_project(project=name)
        for name, body in resources.bodies["serviceAccounts"].items():
            _, project, _, account = name.split("/", maxsplit=3)
            with suppress(AlreadyExists):
                create_service_account(project=project, request={"accountId": account, "serviceAccount": body})
        for name, body in resources.bodies["topics"].items():
            with suppress(AlreadyExists):
                create_topic(name=name, topic=body)
        for name, body in resources.bodies["subscriptions"].items():
            with suppress(AlreadyExists):
                create_subscription(name=name, subscription=body)
    except PushHubError as error:
        raise ResourcesError(f"{name}: {error}") from None


def reset_resources(resources: StartResources) -> None:
    """Delete every snapshot, subscription, topic, schema and account, then create the initial resources again."""
    from subscriptions.models import ServiceAccount, Snapshot, Subscription, Topic
    from subscriptions.models.schemas import Schema
    from subscriptions.services.schemas import delete_schema
    from subscriptions.services.service_accounts import delete_service_account
    from subscriptions.services.snapshots import delete_snapshot
    from subscriptions.services.subscriptions import delete_subscription
    from subscriptions.services.topics import delete_topic

    for snapshot in Snapshot.objects.select_related("project"):
        delete_snapshot(name=snapshot.name)
    for subscription in Subscription.objects.select_related("project"):
        delete_subscription(name=subscription.name)
    for topic in Topic.objects.select_related("project"):
        delete_topic(name=topic.name)
    for schema in Schema.objects.select_related("project"):
        delete_schema(name=schema.name)
    for account in ServiceAccount.objects.filter(deleted_at=None).select_related("project"):
        delete_service_account(name=account.name)
    create_resources(resources)
