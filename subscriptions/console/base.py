"""The base of all pages of the console: each shows and does what the API would show and do for its reader.

Django's own permissions open a kind of page to a member of staff. The policies decide which rows it shows and what the
reader may do with them, by the same table of methods as over REST. A page that names no method is for superusers only,
and so is the page of a model that is registered with Django's own class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

from django.conf import settings
from django.contrib import admin
from django.contrib.admin import RelatedOnlyFieldListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import FieldDoesNotExist
from django.core.exceptions import PermissionDenied as NotForYou
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, URLResolver, path, reverse
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from pushhub.common.errors import PermissionDenied
from pushhub.common.principals import Principal
from pushhub.common.replica import from_primary, is_replica_read
from subscriptions.api.authentication import session_principal
from subscriptions.console import login, navigation
from subscriptions.console.texts import denied_text
from subscriptions.iam import access, tree
from subscriptions.iam.methods import METHODS, authorize
from subscriptions.iam.visible import rows_callable
from subscriptions.services.projects import projects_visible

#: The suffixes that a list's filters add to a field's name in the query string.
FILTER_SUFFIXES = ("", "__exact", "__isnull", "__id__exact")
DATE_PARTS = ("year", "month", "day", "gte", "lt")
#: Of what a reader searches for, each word of which is a condition of the statement. Databases take a thousand.
SEARCHED_CHARACTERS = 400
#: For the pages of rows that nobody adds, changes or deletes there.
UNCHANGEABLE = frozenset({"add", "change", "delete"})


def caller_of(request: HttpRequest) -> Principal:
    """Return the signed-in caller. Nobody else reaches the console's pages."""
    caller = session_principal(request)
    assert caller is not None
    return caller


class ProjectChangeList(ChangeList):
    """A list that shows the rows of the chosen project only, where the rows belong to projects."""

    def get_filters(self, request: HttpRequest) -> Any:
        """Return the filters. Django takes the year 9999, or one of thirty digits, for a fault of the server."""
        try:
            return super().get_filters(request)
        except (ValueError, OverflowError) as error:
            raise IncorrectLookupParameters from error

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        self.query = self.query[:SEARCHED_CHARACTERS]
        rows = super().get_queryset(request, exclude_parameters)
        project_path: str = self.model_admin.project_path  # type: ignore[attr-defined]
        chosen = navigation.chosen_project(request)
        return rows.filter(**{f"{project_path}__project_id": chosen}) if chosen and project_path else rows


class ConsoleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The pages of a model. ConsoleSite makes every registered class one of these."""

    #: The method of iam/methods.py for which each of `view`, `add`, `change` and `delete` stands. A verb without one is
    #: for superusers only.
    methods: ClassVar[Mapping[str, str]] = {}
    #: Those of `add`, `change` and `delete` that nobody does here, not even a superuser.
    refused: ClassVar[frozenset[str]] = frozenset()
    #: The field that leads to the resource that the methods are about; empty if that is the row itself.
    held_on: ClassVar[str] = ""

    #: For a list without a form that adds to it: where its rows are created, and a command line that does.
    creation: tuple[Any, str] | None = None

    @property
    def project_path(self) -> str:
        """Return the lookup from a row to its project; empty if rows belong to no single project."""
        relation = f"{self.held_on}__project" if self.held_on else "project"
        try:
            field = self.opts.get_field(relation.partition("__")[0])
        except FieldDoesNotExist:
            return ""
        return relation if not field.many_to_many else ""

    def render(self, request: HttpRequest, template: str, **context: Any) -> HttpResponse:
        """Return a page of this model that is none of Django's."""
        return TemplateResponse(
            request, template, {**self.admin_site.each_context(request), "opts": self.opts, **context}
        )

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        title = capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title, **(extra_context or {})})

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> HttpResponse:
        """Render Django's page of a row with the row's name as its title, and with one button that saves it."""
        context |= {"show_save_and_add_another": False, "show_save_and_continue": False}
        if context.get("original") is not None:
            context["title"], context["subtitle"] = str(context["original"]), None
        return super().render_change_form(request, context, *args, **kwargs)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return ProjectChangeList

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that the caller, who is no superuser, may view, change or delete."""
        method = self.methods[verb]
        if not self.held_on:
            return rows_callable(caller, method, rows)
        resource: Any = self.opts.get_field(self.held_on).related_model
        held = rows_callable(caller, method, resource._default_manager.order_by())
        return rows.filter(**{f"{self.held_on}__in": held})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows that the reader may view. Lists, searches, filters, actions and pages of a row use them."""
        rows = super().get_queryset(request)
        caller = caller_of(request)
        if access.is_root(caller):
            return rows
        return self.rows_for(caller, "view", rows) if "view" in self.methods else rows.none()

    def get_field_queryset(self, db: Any, db_field: Any, request: HttpRequest) -> QuerySet[Any]:
        """Return what a form offers for a relation: the rows of the console's list of the related model."""
        related = self.admin_site._registry.get(db_field.related_model)
        if related is not None:
            return related.get_queryset(request)
        rows: QuerySet[Any] = db_field.related_model._default_manager.using(db)
        return rows if access.is_root(caller_of(request)) else rows.none()

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row, or None: a page then says that it may have been deleted.

        Raises Http404 for a row that a replica lacks, so that the primary is asked, as it may have been made since.
        """
        row: Any = super().get_object(request, object_id, from_field)
        if row is None and is_replica_read():
            raise Http404
        return row

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and self._may(request, "view", obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_change_permission(request, obj) and self._may(request, "change", obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_delete_permission(request, obj) and self._may(request, "delete", obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the reader may add a row anywhere. The service checks the chosen place again."""
        return super().has_add_permission(request) and self._may(request, "add", None)

    def may_somewhere(self, request: HttpRequest, verb: str) -> bool:
        """Return whether the caller holds the permissions of a verb on any resource at all."""
        caller = caller_of(request)
        if access.is_root(caller):
            return True
        permissions = [needed.permission for needed in METHODS[self.methods[verb]] if not needed.in_body]
        if any(permission.startswith("*") for permission in permissions):
            own = tree.KINDS[self.model.__name__].permissions
            permissions = [permission.replace("*", own, 1) for permission in permissions]
        return all(access.resources_granting(caller, permission) for permission in permissions)

    @from_primary
    def _may(self, request: HttpRequest, verb: str, row: Any) -> bool:
        """Return whether the policies allow a verb on a row; without a row, whether they may allow it on any."""
        if verb in self.refused:
            return False
        caller = caller_of(request)
        if access.is_root(caller):
            return True
        if verb not in self.methods:
            return False
        if row is None:
            return verb == "view" or self.may_somewhere(request, verb)
        return self.rows_for(caller, verb, self.model._default_manager.filter(pk=row.pk)).exists()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups of the page's own filters: others would search in columns that the page hides."""
        allowed = {f"{self.date_hierarchy}__{part}" for part in DATE_PARTS}
        for list_filter in self.get_list_filter(request):
            if isinstance(list_filter, type):
                allowed.add(list_filter.parameter_name)  # type: ignore[attr-defined]
            else:
                path = list_filter if isinstance(list_filter, str) else list_filter[0]
                allowed |= {f"{path}{suffix}" for suffix in FILTER_SUFFIXES}
        return lookup in allowed

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Return the filters; those by a relation offer only values that rows of the list have."""
        return [
            (list_filter, RelatedOnlyFieldListFilter)
            if isinstance(list_filter, str) and self.opts.get_field(list_filter).is_relation
            else list_filter
            for list_filter in super().get_list_filter(request)
        ]


def _translate_names(model: type[Model]) -> None:
    """Show the names and help texts of a model's fields in the reader's language if a catalogue has them."""
    for field in model._meta.fields:
        for attribute in ("verbose_name", "help_text"):
            text = getattr(field, attribute)
            if text and isinstance(text, str):
                setattr(field, attribute, gettext_lazy(text))


def check_row(request: HttpRequest, row: Model, method: str, names: Mapping[str, str]) -> None:
    """Raise an error unless the caller may call `method` about `row`. `names` has the names that `authorize` needs.

    A caller who may see the row in its list learns which permission is missing. Any other caller gets the same answer
    as for a row that doesn't exist.
    """
    try:
        authorize(caller_of(request), method, names)
    except PermissionDenied as error:
        if admin.site._registry[type(row)].has_view_permission(request, row):
            raise NotForYou(denied_text(error)) from error
        raise Http404 from error


class ConsoleSite(admin.AdminSite):
    """The console. Pages that check no policies, such as Django's own of users, are for superusers only."""

    login_form = login.LoginForm
    enable_nav_sidebar = False  # the console has a sidebar of its own
    site_url = None
    #: Returns what the overview shows; the data plane sets it (deliveries/admin/overview.py).
    overview: Callable[[HttpRequest], dict[str, Any]] | None = None
    #: Returns what a look-up of an endpoint's host shows, empty if nothing is wrong; the data plane sets it
    #: (deliveries/admin/endpoints.py).
    endpoint_warning: Callable[[str], str] | None = None

    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if settings.EMULATOR != "OFF" and not self.has_permission(request):
            login.enter_emulator(request)
            back = request.GET.get("next", "")
            return HttpResponseRedirect(back if navigation.is_path_of_console(back) else reverse("admin:index"))
        response = super().login(request, extra_context)
        if login.is_throttled(response):
            response.status_code = HTTPStatus.TOO_MANY_REQUESTS
        elif request.method == "POST" and response.status_code == HTTPStatus.FOUND and request.user.is_authenticated:
            login.remember_browser(request, response)
        return response

    def __init__(self, name: str = "admin") -> None:
        super().__init__(name)
        self._extensions: dict[type[Model], type[ConsoleAdmin]] = {}

    def register(self, model_or_iterable: Any, admin_class: Any = None, **options: Any) -> None:
        for model in (model_or_iterable,) if isinstance(model_or_iterable, type) else model_or_iterable:
            page = admin_class or admin.ModelAdmin
            base = self._extensions.get(model, ConsoleAdmin)
            if not issubclass(page, base):
                page = type(page.__name__, (base, page), {"__module__": page.__module__})
            super().register(model, page, **options)
            _translate_names(model)

    def extend(self, model: type[Model], extension: type[ConsoleAdmin]) -> None:
        """Let another app add to the pages of a model, whichever of the two is loaded first."""
        self._extensions[model] = extension
        if self.is_registered(model):
            page = type(self.get_model_admin(model))
            self.unregister(model)
            self.register(model, page)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Return Django's list once a template reads it: it is part of every page's context, and the index shows it."""
        return SimpleLazyObject(partial(super().get_app_list, request, app_label))

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return Django's context with the sidebar and the project switcher."""
        context = super().each_context(request)
        if self.has_permission(request):
            caller = caller_of(request)
            context["sidebar"] = navigation.sidebar(self, request, caller)
            context["project_switcher"] = navigation.project_switcher(request, caller)
        return context

    def get_urls(self) -> list[URLResolver | URLPattern]:
        choose = self.admin_view(self.choose_project)
        return [path("choose-project/", choose, name="choose_project"), *super().get_urls()]

    def index(self, request: HttpRequest, extra_context: Any = None) -> TemplateResponse:
        shown = self.overview(request) if self.overview is not None else {}
        return super().index(request, {**shown, **(extra_context or {})})

    @method_decorator(require_POST)
    def choose_project(self, request: HttpRequest) -> HttpResponse:
        """Limit the lists of this session to one project, or show all projects again."""
        chosen = request.POST.get("project", "")
        if chosen and not projects_visible(caller_of(request)).filter(project_id=chosen).exists():
            raise Http404
        request.session[navigation.PROJECT_KEY] = chosen
        back = request.POST.get("next", "")
        return HttpResponseRedirect(back if navigation.is_path_of_console(back) else reverse("admin:index"))
