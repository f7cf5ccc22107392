"""The console's pages of access tokens and of service account keys, which can be revoked there."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from pushhub.common.principals import Principal
from subscriptions.admin.service_admin import ServiceAdmin, service_action
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin
from subscriptions.iam.methods import IAM
from subscriptions.identity import access_tokens, account_keys
from subscriptions.models.credentials import AccessToken, ServiceAccountKey


@admin.display(description=_("Expired"), boolean=True)
def has_expired(row: AccessToken | ServiceAccountKey) -> bool:
    return row.has_expired


@admin.register(AccessToken)
class AccessTokenAdmin(ConsoleAdmin):
    """Access tokens, which can be revoked. `manage.py token_create` and /token create them and show them once."""

    refused = UNCHANGEABLE
    methods = {"view": ""}  # the API has no list of tokens; callers see their own here
    creation = (_("Create one by"), "manage.py token_create --member=MEMBER")
    list_display = ("id", "member", "created_at", "expires_at", has_expired)
    list_display_links = None
    search_fields = ("member",)
    date_hierarchy = "expires_at"
    actions = ("revoke",)

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[AccessToken]) -> QuerySet[AccessToken]:
        """Return the caller's own tokens; superusers see all."""
        return rows.filter(member=caller.member)

    @admin.action(description=_("Revoke these tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[AccessToken]) -> None:
        access_tokens.revoke_access_tokens(ids=[row.pk for row in queryset])


@admin.register(ServiceAccountKey)
class ServiceAccountKeyAdmin(ServiceAdmin):
    """The public halves of accounts' keys. REST creates keys, and only its answer has the private half."""

    methods = {
        "view": IAM + "GetServiceAccountKey",
        "disable": IAM + "DisableServiceAccountKey",
        "enable": IAM + "EnableServiceAccountKey",
        "delete_keys": IAM + "DeleteServiceAccountKey",
    }
    creation = (_("Create one by"), "pushhub iam service-accounts keys create KEY.json --iam-account=EMAIL")
    refused = frozenset({"add", "change"})
    services = {
        "disable": account_keys.disable_service_account_key,
        "enable": account_keys.enable_service_account_key,
        "delete_keys": account_keys.delete_service_account_key,
    }
    held_on = "account"
    fields = ("key_id", "account", "disabled", "uploaded", "created_at", "expires_at")
    list_display = (*fields, has_expired)
    list_display_links = None
    list_filter = ("disabled", "uploaded")
    list_select_related = ("account__project",)
    search_fields = ("key_id", "account__email")
    actions = (
        service_action("disable", _("Disable these keys")),
        service_action("enable", _("Enable these keys")),
        service_action("delete_keys", _("Delete these keys")),
    )

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions without Django's own deletion, which needs another permission."""
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}
