"""The console's sidebar, in the order of work, and the project that its lists are limited to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from pushhub.common.principals import Principal
from subscriptions.iam import access
from subscriptions.services.projects import projects_visible

#: The session's key of the chosen project's id.
PROJECT_KEY = "project"
#: Projects that the switcher offers; a deployment with more reaches the others from the list of projects.
OFFERED_PROJECTS = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """A link of the sidebar: a model's list, or the page with this URL name."""

    #: "subscriptions.topic", or "admin:index".
    target: str
    icon: str
    #: The label. By default, that of a model is its plural.
    label: str | Promise = ""
    superusers_only: bool = False

    @property
    def is_model(self) -> bool:
        return not self.target.startswith("admin:")


@dataclass(frozen=True, slots=True)
class Section:
    """Entries below one heading."""

    title: str | Promise
    entries: Sequence[Entry]


SECTIONS = (
    Section(
        _("Work"),
        (
            Entry("admin:index", "overview", _("Overview")),
            Entry("subscriptions.topic", "topic"),
            Entry("subscriptions.subscription", "subscription"),
            Entry("deliveries.message", "message"),
            Entry("deliveries.delivery", "delivery", _("Waiting deliveries")),
            Entry("deliveries.deadletter", "dead"),
            Entry("subscriptions.schema", "schema"),
            Entry("subscriptions.snapshot", "snapshot"),
            Entry("deliveries.publishjob", "replay", _("Replays and ingests")),
        ),
    ),
    Section(
        _("Access"),
        (
            Entry("subscriptions.project", "project"),
            Entry("subscriptions.serviceaccount", "account"),
            Entry("subscriptions.serviceaccountkey", "key", _("Account keys")),
            Entry("subscriptions.policy", "policy"),
            Entry("subscriptions.roleresource", "role"),
            Entry("subscriptions.group", "group", _("Groups of members")),
            Entry("subscriptions.accesstoken", "key"),
            Entry("subscriptions.organization", "project"),
            Entry("subscriptions.folder", "project"),
            Entry("subscriptions.perimeter", "policy"),
            Entry("subscriptions.auditentry", "audit"),
            Entry("auth.user", "account", _("Console users")),
            Entry("auth.group", "group", _("Groups of console users")),
        ),
    ),
    Section(
        _("System"),
        (
            Entry("deliveries.pipelinerun", "replay", _("Pipeline")),
            Entry("deliveries.segment", "segment", _("Journal segments")),
            Entry("deliveries.archivefile", "archive"),
            Entry("subscriptions.signingkey", "key"),
            Entry("admin:deliveries_rejected", "rejected", _("Rejected task messages"), superusers_only=True),
            Entry("admin:deliveries_flower", "overview", "Flower", superusers_only=True),
        ),
    ),
)


def sidebar(site: AdminSite, request: HttpRequest, caller: Principal) -> list[dict[str, Any]]:
    """Return the sections with the links that the caller may open."""
    sections = []
    for section in SECTIONS:
        links = [link for entry in section.entries if (link := _link(site, request, caller, entry)) is not None]
        if links:
            sections.append({"title": section.title, "links": links})
    return sections


def _link(site: AdminSite, request: HttpRequest, caller: Principal, entry: Entry) -> dict[str, Any] | None:
    if entry.superusers_only and not access.is_root(caller):
        return None
    if not entry.is_model:
        url = reverse(entry.target)
        return {"url": url, "label": entry.label, "icon": entry.icon, "model": "", "current": request.path == url}
    page = next((page for model, page in site._registry.items() if model._meta.label_lower == entry.target), None)
    if page is None or not page.has_view_permission(request):
        return None
    options = page.opts
    url = reverse(f"admin:{options.app_label}_{options.model_name}_changelist")
    label = entry.label or capfirst(options.verbose_name_plural)
    return {"url": url, "label": label, "icon": entry.icon, "model": entry.target, "current": False}


def project_switcher(request: HttpRequest, caller: Principal) -> Mapping[str, Any]:
    """Return the chosen project and the projects to choose from."""
    offered = [project.project_id for project in projects_visible(caller)[:OFFERED_PROJECTS]]
    return {"chosen": chosen_project(request), "offered": offered}


def chosen_project(request: HttpRequest) -> str:
    """Return the id of the project that lists are limited to; empty for all projects."""
    return str(request.session.get(PROJECT_KEY, ""))


def short_name(request: HttpRequest, project_id: str, own_id: str) -> str:
    """Return a resource's name as lists show it: its own id, after its project's where lists have several projects."""
    return own_id if chosen_project(request) else f"{project_id} / {own_id}"


def is_path_of_console(address: str) -> bool:
    """Whether a form's `next` leads back into the console and nowhere else."""
    return address.startswith(reverse("admin:index"))
