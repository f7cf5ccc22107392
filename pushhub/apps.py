from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AdminConfig):
    """Django's admin, in which every page checks the policies."""

    default_site = "subscriptions.console.base.ConsoleSite"
