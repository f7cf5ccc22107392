"""The data plane's addresses."""

from __future__ import annotations

from django.urls import re_path

from deliveries.api.views import PublishView

urlpatterns = [
    re_path(r"^v1/projects/(?P<project>[^/]+)/topics/(?P<topic>[^/]+):publish$", PublishView.as_view()),
]
