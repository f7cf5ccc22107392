"""The data plane's addresses; each method's is at its function."""

from __future__ import annotations

from django.urls import path

from deliveries.api import dead_letters, health, messages, pull_views, snapshot_views, time_series, views
from subscriptions.api.routes import list_patterns

urlpatterns = [
    path("metrics", health.metrics, name="metrics"),
    path("readyz", health.readyz, name="readyz"),
    *list_patterns(views, pull_views, messages, dead_letters, snapshot_views, time_series),
]
