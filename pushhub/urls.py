"""Every address the web process answers."""

from __future__ import annotations

from django.conf import settings
from django.urls import URLPattern, URLResolver, include, path
from django.urls.resolvers import RoutePattern

handler500 = "subscriptions.api.errors.server_error"
urlpatterns: list[URLPattern | URLResolver] = [
    # Named and not imported: of PushHub's processes, only those with pages need the console's modules.
    URLResolver(RoutePattern("admin/"), "pushhub.consoleurls", app_name="admin", namespace="admin"),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include("deliveries.api.urls")),
    path("", include("subscriptions.urls")),
]

if settings.EMULATOR == "OFF":
    from pushhub import consoleurls  # noqa: F401 - a server imports everything before its first request
else:
    from pushhub.emulator import views

    urlpatterns.append(path("emulator/reset", views.reset))
