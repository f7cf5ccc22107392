"""The console's side of the control plane: lists, and forms that call the services."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from pushhub.common.principals import Principal
from pushhub.common.rows import row_or_none
from subscriptions.admin import forwarding, resource_forms, subscription_form, topic_form, words
from subscriptions.admin.service_admin import MAY_GET_POLICY, ServiceAdmin, TransformsAdmin, service_action
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin, caller_of
from subscriptions.iam import access
from subscriptions.iam.methods import IAM, PUBLISHER, SET_POLICY, SUBSCRIBER, may_call
from subscriptions.identity import agents
from subscriptions.models import Project, ServiceAccount, Snapshot, Subscription, Topic
from subscriptions.models.iam import SigningKey
from subscriptions.services import service_accounts, snapshots
from subscriptions.services.subscriptions import delete_subscription, pause_subscription, resume_subscription
from subscriptions.services.topics import delete_topic

admin.site.site_header = "PushHub"
admin.site.site_title = "PushHub"
admin.site.index_title = _("Console")

#: The permissions to set an endpoint. A caller who holds any of them may have an endpoint checked.
USING_ENDPOINTS = ("pubsub.subscriptions.create", "pubsub.subscriptions.update")
NOT_FORWARDED = _("The service agent may not forward dead letters: messages go on being delivered until it is granted.")
NOT_SIGNED = _("The service agent may not sign for the account: pushes are nacked as token_denied until it is granted.")
DISABLED = _("The service account is disabled: pushes are nacked as token_denied until it is enabled.")
UNKNOWN = _("The service account does not exist: pushes are nacked as token_denied until it is created.")


def unsigned(email: str) -> tuple[str, ServiceAccount | None]:
    """Return why no token of an account can be signed, "" if it can, and the account if a grant is what it lacks."""
    account = row_or_none(ServiceAccount.objects.select_related("project").filter(email=email))
    if account is None or account.is_disabled:
        return str(UNKNOWN if account is None else DISABLED), None
    return ("", None) if agents.can_agent_mint(account) else (str(NOT_SIGNED), account)


def grant(caller: Principal, account: ServiceAccount) -> None:
    """Let the project's service agent sign for an account, unless it may already."""
    if not agents.can_agent_mint(account):
        agents.grant_agent(account, caller=caller)


@admin.register(Project)
class ProjectAdmin(ServiceAdmin):
    """Projects. They are never deleted: names of their resources may be in use elsewhere."""

    form = resource_forms.ProjectForm
    methods = {
        "view": "google.cloudresourcemanager.v1.GetProject",
        "add": "google.cloudresourcemanager.v1.CreateProject",
    }
    refused = frozenset({"change", "delete"})
    fixed = ("project_id",)
    shown = ("project_id", "number", "service_agent", "created_at")
    asked_per_row = MAY_GET_POLICY
    list_display = ("project_id", "number", "service_agent", "created_at", "permissions")
    search_fields = ("project_id",)

    @admin.display(description=_("Service agent"))
    def service_agent(self, row: Project) -> str:
        return row.service_agent


@admin.register(Topic)
class TopicAdmin(TransformsAdmin):
    """Topics. Their list and overview are the data plane's (deliveries/admin/topic_pages.py)."""

    form = topic_form.TopicForm
    methods = {
        "view": PUBLISHER + "GetTopic",
        "add": PUBLISHER + "CreateTopic",
        "change": PUBLISHER + "UpdateTopic",
        "delete": PUBLISHER + "DeleteTopic",
    }
    services = {"delete": delete_topic}
    fixed = shown = ("project", "topic_id")
    asked_per_row = {**MAY_GET_POLICY, "may_publish": PUBLISHER + "Publish"}
    search_fields = ("topic_id", "project__project_id")
    list_select_related = ("project",)

    @admin.display(description=_("Publish"))
    def publish_link(self, topic: Topic) -> str:
        if not topic.may_publish:  # type: ignore[attr-defined]
            return "-"
        return format_html(
            '<a href="{}">{}</a>', f"{reverse('admin:deliveries_topic', args=[topic.pk])}#publish", _("publish")
        )


@admin.register(Subscription)
class SubscriptionAdmin(TransformsAdmin):
    """Subscriptions. Their list is the data plane's (deliveries/admin/subscription_list.py)."""

    form = subscription_form.SubscriptionForm
    methods = {
        "view": SUBSCRIBER + "GetSubscription",
        "add": SUBSCRIBER + "CreateSubscription",
        "change": SUBSCRIBER + "UpdateSubscription",
        "delete": SUBSCRIBER + "DeleteSubscription",
    }
    services = {"delete": delete_subscription}
    fixed = ("project", "subscription_id", "topic", "new_topic", "enable_message_ordering", "filter")
    shown = (
        *("project", "subscription_id", "topic", "enable_message_ordering", "filter"),
        *("agent", "forwarding", "detached", "created_at", "updated_at"),
    )
    list_display_links = None
    search_fields = ("subscription_id", "project__project_id", "push_endpoint")
    list_select_related = ("project", "topic__project")
    actions = ("pause", "resume")

    class Media:
        js = ("subscriptions/forms.js",)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:pk>/grant-agent/", view(self.grant_agent), name="subscriptions_grant_agent"),
            path("<int:pk>/grant-forwarding/", view(self.grant_forwarding), name="subscriptions_grant_forwarding"),
            path("check-endpoint/", view(self.check_endpoint), name="subscriptions_check_endpoint"),
            *super().get_urls(),
        ]

    def check_endpoint(self, request: HttpRequest) -> HttpResponse:
        """Return why an endpoint would be refused or fail, while the form is being filled in."""
        caller = caller_of(request)
        if not access.is_root(caller) and not any(
            access.resources_granting(caller, permission) for permission in USING_ENDPOINTS
        ):
            raise PermissionDenied
        url = request.GET.get("url", "")
        return JsonResponse({"text": self._endpoint_text(url) if url else ""})

    def _endpoint_text(self, url: str) -> str:
        """Return what is wrong with an endpoint, or with the addresses that its name has now; empty if nothing is."""
        look_up: Callable[[str], str] | None = getattr(self.admin_site, "endpoint_warning", None)
        return words.endpoint_refusal(url) or (look_up(url) if look_up is not None else "")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with its reader, so that the columns below show no button that would be refused."""
        row: Any = super().get_object(request, object_id, from_field)
        if row is not None:
            row.reader = caller_of(request)
        return row

    @admin.display(description=_("Authentication"))
    def agent(self, row: Subscription) -> str:
        """Return that pushes can be signed, or else a button that grants it."""
        if not row.oidc_service_account_email:
            return str(_("Pushes carry no token."))
        reason, account = unsigned(row.oidc_service_account_email)
        if not reason:
            return str(_("The service agent may sign for the account."))
        button = _grant_button("subscriptions_grant_agent", row, [account]) if account is not None else ""
        return format_html("{} {}", reason, button)

    @method_decorator(require_POST)
    def grant_agent(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Let the service agent sign for the subscription's account."""
        row = get_object_or_404(self.get_queryset(request), pk=pk)
        account = ServiceAccount.objects.select_related("project").filter(email=row.oidc_service_account_email)
        self.for_each(request, account, SET_POLICY, partial(grant, caller_of(request)))
        return HttpResponseRedirect(reverse("admin:subscriptions_subscription_change", args=[pk]))

    @admin.display(description=_("Forwarding"))
    def forwarding(self, row: Subscription) -> str:
        """Return that dead letters can be forwarded, or else a button that grants it."""
        if row.dead_letter_topic is None:
            return str(_("The subscription has no dead letter topic."))
        if settings.DEVELOPMENT or not forwarding.forwarding_missing(row):
            return str(_("The service agent may forward dead letters."))
        resources = [resource for resource, _role in forwarding.forwarding_missing(row)]
        return format_html("{} {}", NOT_FORWARDED, _grant_button("subscriptions_grant_forwarding", row, resources))

    @method_decorator(require_POST)
    def grant_forwarding(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Let the service agent forward the subscription's dead letters."""
        row = get_object_or_404(self.get_queryset(request), pk=pk)
        service = partial(forwarding.grant_forwarding, caller=caller_of(request))
        self.for_each(request, [row], SUBSCRIBER + "GetSubscription", service)
        return HttpResponseRedirect(reverse("admin:subscriptions_subscription_change", args=[pk]))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Warn of what does not work yet. The form's service has stored the row."""
        email = obj.oidc_service_account_email
        if email and (reason := unsigned(email)[0]):
            self.message_user(request, reason, messages.WARNING)
        if not settings.DEVELOPMENT and forwarding.forwarding_missing(obj):
            self.message_user(request, NOT_FORWARDED, messages.WARNING)
        warning = self._endpoint_text(obj.push_endpoint) if obj.push_endpoint else ""
        if warning:
            self.message_user(request, warning, messages.WARNING)

    @admin.action(description=_("Pause: keep the push configuration and let messages wait"), permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        caller = caller_of(request)
        method = SUBSCRIBER + "ModifyPushConfig"
        self.for_each(request, queryset, method, lambda row: pause_subscription(name=row.name, caller=caller))

    @admin.action(description=_("Resume: push again"), permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Subscription]) -> None:
        caller = caller_of(request)
        method = SUBSCRIBER + "ModifyPushConfig"
        self.for_each(request, queryset, method, lambda row: resume_subscription(name=row.name, caller=caller))


def _grant_button(url_name: str, row: Any, resources: Iterable[Any]) -> str:
    """Return a button that grants something on these resources, if the reader may set all of their policies."""
    reader = getattr(row, "reader", None)
    if reader is None or not all(may_call(reader, SET_POLICY, resource) for resource in resources):
        return ""
    url = reverse(f"admin:{url_name}", args=[row.pk])
    return format_html('<button class="button" formaction="{}" formnovalidate>{}</button>', url, _("Grant"))


@admin.register(Snapshot)
class SnapshotAdmin(ServiceAdmin):
    """Snapshots, which can be viewed and deleted. The API creates them."""

    methods = {"view": SUBSCRIBER + "GetSnapshot", "delete": SUBSCRIBER + "DeleteSnapshot"}
    refused = frozenset({"add", "change"})
    services = {"delete": snapshots.delete_snapshot}
    creation = (
        _("Create one on a subscription's page, or by"),
        "pushhub snapshots create SNAPSHOT --subscription=SUBSCRIPTION",
    )
    asked_per_row = MAY_GET_POLICY
    list_display = ("name", "topic", "expire_at", "created_at", "permissions")
    list_display_links = None
    fields = ("name", "topic", "expire_at", "created_at")
    search_fields = ("snapshot_id", "project__project_id")
    list_select_related = ("project", "topic__project")


@admin.register(ServiceAccount)
class ServiceAccountAdmin(ServiceAdmin):
    form = resource_forms.ServiceAccountForm
    methods = {
        "view": IAM + "GetServiceAccount",
        "add": IAM + "CreateServiceAccount",
        "change": IAM + "PatchServiceAccount",
        "delete": IAM + "DeleteServiceAccount",
        "disable": IAM + "DisableServiceAccount",
        "enable": IAM + "EnableServiceAccount",
        "grant_agent": SET_POLICY,
    }
    services = {
        "delete": service_accounts.delete_service_account,
        "disable": service_accounts.disable_service_account,
        "enable": service_accounts.enable_service_account,
    }
    fixed = ("project", "account_id")
    shown = ("email", "unique_id", "disabled", "can_agent_sign", "created_at")
    asked_per_row = MAY_GET_POLICY
    list_display = ("email", "unique_id", "display_name", "disabled", "can_agent_sign", "created_at", "permissions")
    search_fields = ("email", "unique_id", "display_name")
    list_select_related = ("project",)
    actions = (
        service_action("disable", _("Disable: no more tokens for these accounts")),
        service_action("enable", _("Enable")),
        "grant_agent",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ServiceAccount]:
        """Return the accounts without the deleted ones, which only an undelete by their unique id brings back."""
        return super().get_queryset(request).filter(deleted_at=None)

    @admin.display(description=_("Service agent may sign"), boolean=True)
    def can_agent_sign(self, row: ServiceAccount) -> bool:
        return agents.can_agent_mint(row)

    @admin.action(description=_("Grant the service agent the right to sign for these accounts"))
    def grant_agent(self, request: HttpRequest, queryset: QuerySet[ServiceAccount]) -> None:
        """Grant the service agent the token creator role (docs/spec-delivery.md#push-token-preconditions)."""

        rows = queryset.select_related("project")
        self.for_each(request, rows, SET_POLICY, partial(grant, caller_of(request)))


@admin.register(SigningKey)
class SigningKeyAdmin(ConsoleAdmin):
    """The public halves of the keys that sign tokens. Only superusers see them, as the keys belong to no tenant."""

    refused = UNCHANGEABLE
    list_display = ("kid", "created_at", "signs_from", "retired_at")
    fields = ("kid", "certificate", "created_at", "signs_from", "retired_at")
    readonly_fields = fields
