from __future__ import annotations

from django.contrib.admin.apps import SimpleAdminConfig


class ConsoleConfig(SimpleAdminConfig):
    """Django's admin, in which every page checks the policies."""

    default_site = "subscriptions.console.base.ConsoleSite"
