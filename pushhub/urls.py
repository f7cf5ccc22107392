"""Every address the web process answers."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path

# Here and not while Django is set up: of PushHub's processes, only those with pages need the console's modules.
admin.autodiscover()

handler500 = "subscriptions.api.errors.server_error"
urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("", include("deliveries.api.urls")),
    path("", include("subscriptions.urls")),
]

if settings.EMULATOR != "OFF":
    from pushhub.emulator import views

    urlpatterns.append(path("emulator/reset", views.reset))
