from __future__ import annotations

from django.apps import AppConfig


class SubscriptionsConfig(AppConfig):
    """The control plane."""

    name = "subscriptions"

    def ready(self) -> None:
        from subscriptions import receivers, treeadmin  # noqa: F401 - the import registers its pages

        receivers.connect()
