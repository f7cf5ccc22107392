"""The addresses of the console. Importing this imports its pages."""

from __future__ import annotations

from django.contrib import admin

admin.autodiscover()
urlpatterns = admin.site.urls[0]
