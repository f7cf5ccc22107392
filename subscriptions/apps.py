from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.translation import gettext_lazy as _

from pushhub.common import names


class SubscriptionsConfig(AppConfig):
    """The control plane."""

    name = "subscriptions"
    verbose_name = _("Topics, subscriptions and access")

    def ready(self) -> None:
        # Importing the checks registers them.
        from subscriptions import checks, receivers  # noqa: F401

        receivers.connect()
        if settings.EMULATOR != "OFF":
            names.emulate_project_ids()
