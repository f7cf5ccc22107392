"""The console's pages of what callers prove themselves with: which there are, and an end to each."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from pushhub.common.principals import Principal
from subscriptions.admin.resources import IAM, ServiceAdmin
from subscriptions.console.base import ConsoleAdmin
from subscriptions.identity import access_tokens, account_keys
from subscriptions.models.credentials import AccessToken, ServiceAccountKey


@admin.register(AccessToken)
class AccessTokenAdmin(ConsoleAdmin):
    """Access tokens, to be revoked. They are made by `manage.py token_create` and at /token, never shown again."""

    methods = {"view": ""}  # the API lists no tokens: everybody has their own
    list_display = ("id", "member", "created_at", "expires_at", "has_expired")
    list_display_links = None
    search_fields = ("member",)
    date_hierarchy = "expires_at"
    actions = ("revoke",)

    @admin.display(description=_("Expired"), boolean=True)
    def has_expired(self, row: AccessToken) -> bool:
        return row.has_expired

    def rows_for(self, caller: Principal, verb: str, rows: QuerySet[AccessToken]) -> QuerySet[AccessToken]:
        """Those of others are for who may do everything."""
        return rows.filter(member=caller.member)

    @admin.action(description=_("Revoke these tokens"), permissions=["view"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[AccessToken]) -> None:
        access_tokens.access_tokens_revoke(ids=[row.pk for row in queryset])

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(ServiceAccountKey)
class ServiceAccountKeyAdmin(ServiceAdmin):
    """The public halves of accounts' keys. Key files are made over REST, whose answer alone has the private half."""

    methods = {"view": f"{IAM}.GetServiceAccountKey"}
    held_on = "account"
    list_display = ("key_id", "account", "disabled", "uploaded", "created_at", "expires_at")
    list_display_links = None
    fields = list_display
    list_filter = ("disabled", "uploaded")
    list_select_related = ("account__project",)
    search_fields = ("key_id", "account__email")
    actions = ("disable", "enable", "delete_keys")

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Without Django's own deletion, which would ask for another permission."""
        return {name: action for name, action in super().get_actions(request).items() if name != "delete_selected"}

    @admin.action(description=_("Disable these keys"), permissions=["view"])
    def disable(self, request: HttpRequest, queryset: QuerySet[ServiceAccountKey]) -> None:
        self._each(request, queryset, f"{IAM}.DisableServiceAccountKey", account_keys.service_account_key_disable)

    @admin.action(description=_("Enable these keys"), permissions=["view"])
    def enable(self, request: HttpRequest, queryset: QuerySet[ServiceAccountKey]) -> None:
        self._each(request, queryset, f"{IAM}.EnableServiceAccountKey", account_keys.service_account_key_enable)

    @admin.action(description=_("Delete these keys"), permissions=["view"])
    def delete_keys(self, request: HttpRequest, queryset: QuerySet[ServiceAccountKey]) -> None:
        self._each(request, queryset, f"{IAM}.DeleteServiceAccountKey", account_keys.service_account_key_delete)

    def _each(self, request: HttpRequest, keys: QuerySet[ServiceAccountKey], method: str, service: Any) -> None:
        def act(key: ServiceAccountKey) -> None:
            service(name=key.name)

        self.for_each(request, keys.select_related("account__project"), method, act)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
