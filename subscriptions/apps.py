from __future__ import annotations

from django.apps import AppConfig


class SubscriptionsConfig(AppConfig):
    """The control plane."""

    name = "subscriptions"

    def ready(self) -> None:
        from subscriptions import receivers

        receivers.connect()
