from __future__ import annotations

from django.apps import AppConfig


class DeliveriesConfig(AppConfig):
    """The data plane."""

    name = "deliveries"

    def ready(self) -> None:
        from deliveries import receivers

        receivers.connect()
