from __future__ import annotations

from django.apps import AppConfig


class SubscriptionsConfig(AppConfig):
    """The control plane."""

    name = "subscriptions"

    def ready(self) -> None:
        # The imports register pages of the console.
        from subscriptions import auditadmin, credentialadmin, policyadmin, receivers, treeadmin  # noqa: F401

        receivers.connect()
