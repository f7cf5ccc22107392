"""The console's forms. They have no rules of their own: each calls the API's service and shows its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django import forms
from django.db import transaction
from django.db.models import QuerySet
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from pushhub.common.errors import PushHubError
from pushhub.common.principals import OPERATOR, Principal
from subscriptions.admin import words
from subscriptions.admin.durations import DurationField, duration_text
from subscriptions.console.texts import TextsField
from subscriptions.iam import access
from subscriptions.iam.methods import authorize
from subscriptions.iam.roles import GET_OPEN_ID_TOKEN
from subscriptions.iam.visible import rows_held
from subscriptions.identity import agents
from subscriptions.models import Project, ServiceAccount
from subscriptions.services import hierarchy, service_accounts
from subscriptions.services.projects import create_project

Fields = dict[str, Any]

#: Values that the API leaves out.
EMPTY: tuple[Any, ...] = ("", None, {})
#: The number of projects whose service agents a form checks. Each costs two queries.
ASKED_PROJECTS = 10


def small_text() -> forms.Textarea:
    return forms.Textarea(attrs={"rows": 3, "cols": 60})


def wide_line() -> forms.TextInput:
    return forms.TextInput(attrs={"size": 60})


@dataclass(frozen=True, slots=True)
class Section:
    """Fields of a form below one heading. `css_class` says when they apply, and that they are folded ("collapse")."""

    title: Promise
    fields: tuple[str, ...]
    css_class: str = ""


class AccountField(forms.ModelChoiceField):  # type: ignore[type-arg]
    """A service account, with a note if pushes can't be signed as it."""

    #: The accounts that can't sign, which every form asks for once.
    _unsigned: set[str] | None = None

    def label_from_instance(self, obj: Any) -> str:
        if self._unsigned is None:
            assert self.queryset is not None
            self._unsigned = unsigned_accounts(self.queryset)
        if obj.email not in self._unsigned:
            return str(obj.email)
        return _("%(email)s (disabled, or the service agent may not sign for it)") % {"email": obj.email}


def unsigned_accounts(accounts: QuerySet[ServiceAccount]) -> set[str]:
    """Return the accounts that are disabled, or that the service agent of their project may not sign for.

    Only a few projects' agents are checked. A caller who may use accounts of more projects is warned after saving.
    """
    by_project: dict[Project, list[ServiceAccount]] = {}
    for account in accounts:
        by_project.setdefault(account.project, []).append(account)
    unsigned = {account.email for account in accounts if account.is_disabled}
    for project, rows in list(by_project.items())[:ASKED_PROJECTS]:
        own = ServiceAccount.objects.filter(project=project)
        held = rows_held(agents.service_agent(project), GET_OPEN_ID_TOKEN, own)
        signable = set(held.values_list("email", flat=True))
        unsigned |= {account.email for account in rows} - signable
    return unsigned


class ServiceForm(forms.ModelForm):  # type: ignore[type-arg]
    """Calls its service as the last step of validation, so that the service's errors are shown at their fields.

    The service is one transaction: a form with an error has changed nothing. As it stops at the first error, it is
    called again without the field in question, until it tells no more of them.
    """

    #: How the page groups the fields; without sections they stand in one group.
    sections: ClassVar[Sequence[Section]] = ()
    #: Fields that are left out for a caller who holds the permission nowhere.
    permissions: ClassVar[Mapping[str, str]] = {}
    #: The signed-in caller, set by the page. The table of methods applies as it does to the API.
    caller: ClassVar[Principal] = OPERATOR
    #: By field: what the caller must hold on a resource so that the field offers it.
    offered: ClassVar[Mapping[str, str]] = {}
    #: The paths of the API's fields that the form sets, with the form's fields.
    values: ClassVar[Mapping[str, str]] = {}
    #: Other paths that the service's errors name, and where they are shown.
    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        row = kwargs.get("instance")
        super().__init__(*args, **(kwargs if row is None else {**kwargs, "initial": self.initial_for(row)}))
        for name, field in self.fields.items():
            if isinstance(field, forms.ModelChoiceField) and field.queryset is not None:
                field.empty_label = _("choose") if field.required or name == "topic" else _("none")
                offered = rows_held(self.caller, self.offered[name], field.queryset)
                field.queryset = offered | field.queryset.filter(**self._current(name, field))

    def _current(self, name: str, field: Any) -> dict[str, Any]:
        """Return the filter of the current value. The field always offers it, so that saving the form keeps it."""
        value = self.initial.get(name)
        return {field.to_field_name or "pk": getattr(value, "pk", value)} if value else {"pk__in": ()}

    def _post_clean(self) -> None:
        """Skip the model's own validation, which would be a second set of rules."""
        while self.is_complete() and self._is_refused():
            pass

    def is_complete(self) -> bool:
        """Return whether the service can be called, be it to learn of more errors."""
        return not self.errors

    def check(self) -> None:
        """Check what must not be checked in a transaction."""

    def carry_out(self) -> Any:
        raise NotImplementedError

    def _is_refused(self) -> bool:
        """Call the service, and return whether it may be called again without what it refuses."""
        try:
            self.check()
            with transaction.atomic():
                row = self.carry_out()
                if self.errors:
                    transaction.set_rollback(True)
                else:
                    self.instance = row
        except PushHubError as error:
            return self._add_refusal(error)
        return False

    def _add_refusal(self, error: PushHubError) -> bool:
        """Show an error at its field and leave that out. Return whether anything was left out.

        A second error at a field comes from others in the same field of the API, so they are left out too.
        """
        field = self._place_of(error.field)
        if field is None or field not in self.errors:
            self.add_error(field, words.refusal_text(error, field, self.cleaned_data.get(field or "")))
            return field is not None
        beside = [name for path, name in self.values.items() if path.split(".")[0] == error.field.split(".")[0]]
        left_out = [name for name in beside if self.cleaned_data.pop(name, None)]
        return bool(left_out)

    @classmethod
    def unusable(cls, caller: Principal) -> set[str]:
        """Return the fields that the service always refuses from this caller."""
        if access.is_root(caller):
            return set()
        held = {name: access.resources_granting(caller, permission) for name, permission in cls.permissions.items()}
        return {name for name, resources in held.items() if not resources}

    def save(self, commit: bool = True) -> Any:
        return self.instance

    def _save_m2m(self) -> None:
        """Do nothing: the service has stored everything."""

    save_m2m = _save_m2m

    @property
    def is_new(self) -> bool:
        return self.instance.pk is None

    def values_entered(self, **given: Any) -> Fields:
        """Return what is entered, without empty fields, as the API has it. `given` replaces the values of fields."""
        entered: Fields = {}
        for path, name in self.values.items():
            value = given.get(name, self.cleaned_data.get(name))
            if value not in EMPTY:
                *parents, last = path.split(".")
                inside = entered
                for parent in parents:
                    inside = inside.setdefault(parent, {})
                inside[last] = value
        return entered

    @classmethod
    def initial_for(cls, row: Any) -> Fields:
        """Return a row as the form shows it."""
        return {name: getattr(row, name) for name in cls.base_fields if hasattr(row, name)}

    @classmethod
    def initial_of(cls, resource: Fields) -> Fields:
        """Return the fields of a resource, in the API's form, as this form shows them."""
        fields = cls.base_fields
        return {name: _shown(fields[name], path, resource) for path, name in cls.values.items() if name in fields}

    def _place_of(self, path: str) -> str | None:
        """Return the field of the longest path that is, or has, `path`; or else the first field within it."""
        places = {**self.values, **self.places}
        around = [start for start in places if path == start or path.startswith((start + ".", start + "["))]
        within = [name for inner, name in places.items() if inner.startswith(path + ".")]
        field = places[max(around, key=len)] if around else next(iter(within), path)
        return field if field in self.fields else None


def _shown(field: forms.Field, path: str, resource: Fields) -> Any:
    value: Any = resource
    for name in path.split("."):
        value = value.get(name) if value is not None else None
    if isinstance(field, DurationField):
        return duration_text(value)
    empty = {TextsField: {}, forms.BooleanField: False, forms.IntegerField: None}
    return empty.get(type(field), "") if value is None else value


class ServiceAccountForm(ServiceForm):
    project = forms.ModelChoiceField(Project.objects.all(), label=_("Project"))
    account_id = forms.CharField(label=_("Account ID"), help_text=_("6 to 30 lower-case letters, digits and hyphens"))
    display_name = forms.CharField(label=_("Display name"), required=False)
    description = forms.CharField(label=_("Description"), required=False)

    offered = {"project": "iam.serviceAccounts.create"}
    values = {"displayName": "display_name", "description": "description"}
    places = {"accountId": "account_id"}

    def carry_out(self) -> ServiceAccount:
        entered = self.cleaned_data
        texts = self.values_entered()
        if self.is_new:
            project = entered["project"]
            request = {"accountId": entered["account_id"], "serviceAccount": texts}
            authorize(self.caller, "google.iam.admin.v1.CreateServiceAccount", {"name": project.name})
            return service_accounts.create_service_account(
                project=project.project_id, request=request, caller=self.caller
            )
        name = self.instance.name
        request = {"serviceAccount": texts, "updateMask": "displayName,description"}
        authorize(self.caller, "google.iam.admin.v1.PatchServiceAccount", {"service_account.name": name})
        return service_accounts.update_service_account(name=name, request=request)


class ProjectForm(ServiceForm):
    """A project. Its number and service agent are created with it."""

    project_id = forms.CharField(label=_("Project ID"))
    parent = forms.CharField(
        label=_("Parent"), required=False, help_text=_("organizations/NUMBER or folders/NUMBER; empty: none")
    )

    places = {"projectId": "project_id", "name": "project_id", "parent": "parent"}

    @classmethod
    def initial_for(cls, row: Project) -> Fields:
        return {"parent": row.parent.name if row.parent else None}

    def carry_out(self) -> Project:
        entered = self.cleaned_data
        parent = hierarchy.get_parent(entered["parent"], caller=self.caller)
        return create_project(project_id=entered["project_id"], parent=parent, caller=self.caller)
