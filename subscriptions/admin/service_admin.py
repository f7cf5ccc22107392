"""The base of the console's pages whose rows services create, change and delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from pushhub.common.errors import PushHubError
from subscriptions.admin import transform_fields
from subscriptions.admin.policies import link_permissions
from subscriptions.console.base import ConsoleAdmin, caller_of
from subscriptions.console.navigation import chosen_project
from subscriptions.console.tabs import tabs_of
from subscriptions.console.texts import error_text
from subscriptions.iam.methods import GET_POLICY, authorize_row
from subscriptions.iam.visible import rows_callable
from subscriptions.models import Subscription, Topic
from subscriptions.services.projects import projects_visible

MAY_GET_POLICY = {"may_get_policy": GET_POLICY}


def service_action(verb: str, description: Any) -> Any:
    """Return the action that calls the service of a verb for each ticked row."""

    @admin.action(description=description)
    def action(page: ServiceAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        page.for_each(request, queryset, page.methods[verb], lambda row: page.services[verb](name=row.name))

    action.__name__ = verb
    return action


class ServiceAdmin(ConsoleAdmin):
    """A model whose rows services create, change and delete."""

    #: A ServiceForm, unless `fields` has what the page shows.
    form: Any
    #: The services that take a row's name, by the verbs of `methods`.
    services: ClassVar[Mapping[str, Callable[..., object]]] = {}
    #: Fields of the form that don't change once the row exists, and what is shown as text from then on.
    fixed: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ()
    #: The methods that the links of a row lead to, by the column that says whether the reader may call them.
    asked_per_row: ClassVar[Mapping[str, str]] = {}
    #: The fields that a page without a form shows.
    fields: ClassVar[tuple[str, ...]] = ()
    list_per_page = 50

    def get_action_choices(self, request: HttpRequest, default_choices: Any = ()) -> list[tuple[str, str]]:
        """Return the actions on ticked rows, after a line that says so."""
        return super().get_action_choices(request, [("", str(_("With the ticked rows")))])

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions without those that call a method which the reader may call nowhere."""
        actions = super().get_actions(request).items()
        return {
            verb: action for verb, action in actions if verb not in self.methods or self.may_somewhere(request, verb)
        }

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        if self.fields:
            return list(self.fields)
        fields = self.form.base_fields
        if obj is None:
            return list(fields)
        changeable = [name for name in fields if name not in self.fixed]
        if not self.has_change_permission(request, obj):
            return [*self.shown, *(self.as_text(name, fields[name]) for name in changeable)]
        return [*self.shown, *changeable]

    def as_text(self, name: str, field: forms.Field) -> Callable[[Any], Any]:
        """Return a column with a field's label and value, for a reader who may not change it."""

        def text(row: Any) -> Any:
            value = self.form.initial_for(row).get(name)
            return self.get_empty_value_display() if value is None else value

        text.short_description = field.label  # type: ignore[attr-defined]
        text.__name__ = name
        return text

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the form's sections; the first ends with the fields that belong to none."""
        names = [name for name in self.get_fields(request, obj) if name not in self.unusable_of(request)]
        sections = getattr(self.form, "sections", ())
        is_form = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        if not sections or not is_form:
            return [(None, {"fields": names})]
        placed = {name for section in sections for name in section.fields}
        others = [name for name in names if name not in placed]
        groups = [
            (section, [*(name for name in section.fields if name in names), *(others if number == 0 else ())])
            for number, section in enumerate(sections)
        ]
        return [
            (section.title, {"fields": fields, "classes": section.css_class.split()})
            for section, fields in groups
            if fields
        ]

    def unusable_of(self, request: HttpRequest) -> set[str]:
        """Return the fields of the form that the service would refuse from this reader."""
        unusable: set[str] = self.form.unusable(caller_of(request)) if hasattr(self.form, "unusable") else set()
        return unusable

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if self.fields:
            return self.fields
        return () if obj is None else self.shown

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the class's own form; Django would build one from the model's fields."""
        if self.fields:  # nothing to fill in
            return super().get_form(request, obj, change, **kwargs)
        left_out = dict.fromkeys([*self.unusable_of(request), *(() if obj is None else self.fixed)])
        meta = type("Meta", (), {"model": self.model, "fields": ()})
        return type(self.form.__name__, (self.form,), {**left_out, "Meta": meta, "caller": caller_of(request)})

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Return what a new row begins with: the chosen project, if the form has one.

        Nothing comes from the query string, as Django would have it: a field offers its current value to everybody.
        """
        chosen = projects_visible(caller_of(request)).filter(project_id=chosen_project(request))
        return {"project": chosen.first()}

    def save_model(self, request: HttpRequest, obj: Model, form: Any, change: bool) -> None:
        """Do nothing: the form's service has stored the row."""

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Show a service's refusal above the list; nothing is deleted then."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except PushHubError as error:
            self.message_user(request, error_text(error), messages.ERROR)
            return HttpResponseRedirect(reverse(f"admin:{self.opts.label_lower.replace('.', '_')}_changelist"))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        self.delete_by_service(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self.for_each(request, queryset, self.methods["delete"], self.delete_by_service)

    def for_each(
        self, request: HttpRequest, rows: Iterable[Any], method: str, service: Callable[[Any], object]
    ) -> None:
        """Call a service for each row on which the caller may call the method, and show every refusal."""
        for row in rows:
            try:
                authorize_row(caller_of(request), method, row)
                service(row)
            except PushHubError as error:
                self.message_user(request, f"{row}: {error_text(error)}", messages.ERROR)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return the rows alone: services delete neither their subscriptions nor their keys with them."""
        return [str(row) for row in objs], {self.opts.verbose_name_plural: len(objs)}, set(), []

    def delete_by_service(self, row: Any) -> None:
        self.services["delete"](name=row.name)

    @admin.display(description=_("name"))
    def name(self, row: Any) -> str:
        return str(row.name)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, each with a column per method of `asked_per_row`: whether the caller may call it."""
        rows: QuerySet[Any] = super().get_queryset(request)
        own = self.model._default_manager.order_by().filter(pk=OuterRef("pk"))
        columns = {
            name: Exists(rows_callable(caller_of(request), method, own)) for name, method in self.asked_per_row.items()
        }
        annotated: QuerySet[Any] = rows.annotate(**columns)
        return annotated

    @admin.display(description=_("Permissions"))
    def permissions(self, row: Any) -> str:
        return link_permissions(row) if row.may_get_policy else "-"


class TransformsAdmin(ServiceAdmin):
    """A model whose rows have message transforms, and pages in tabs: topics and subscriptions."""

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        row = context.get("original")
        if row is not None:
            context["tabs"] = tabs_of(row, "configuration", caller=caller_of(request))
        return super().render_change_form(request, context, *args, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Without permission to change the row, its transforms are one text instead of a field per function."""
        fields = super().get_fields(request, obj)
        if obj is None or self.has_change_permission(request, obj):
            return fields
        names = transform_fields.FIELD_NAMES
        return [*(field for field in fields if getattr(field, "__name__", "") not in names), "transforms"]

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Do as Django does, without its transaction: the form runs users' code before its service's transaction."""
        return self._changeform_view(request, object_id, form_url, extra_context)  # type: ignore[attr-defined,no-any-return]

    @admin.display(description=_("Message transforms"))
    def transforms(self, row: Topic | Subscription) -> str:
        """Return the functions with their code."""
        functions = [
            (
                transform["javascriptUdf"]["functionName"],
                _("disabled") if transform.get("disabled") else "",
                transform["javascriptUdf"]["code"],
            )
            for transform in row.message_transforms or ()
        ]
        html = format_html_join("", "<details><summary>{} {}</summary><pre>{}</pre></details>", functions)
        return html or str(_("No message transforms."))
