from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DeliveriesConfig(AppConfig):
    """The data plane."""

    name = "deliveries"
    verbose_name = _("Messages and deliveries")

    def ready(self) -> None:
        from deliveries import receivers

        receivers.connect()
