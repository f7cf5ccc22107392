"""The data plane's addresses."""

from __future__ import annotations

from django.urls import re_path

from deliveries.api import pull_views
from deliveries.api.time_series import TimeSeriesList
from deliveries.api.views import PublishView

SUBSCRIPTION = r"^v1/projects/(?P<project>[^/]+)/subscriptions/(?P<subscription>[^/]+)"

urlpatterns = [
    re_path(r"^v3/projects/(?P<project>[^/]+)/timeSeries$", TimeSeriesList.as_view()),
    re_path(r"^v1/projects/(?P<project>[^/]+)/topics/(?P<topic>[^/]+):publish$", PublishView.as_view()),
    re_path(SUBSCRIPTION + r":pull$", pull_views.SubscriptionPull.as_view()),
    re_path(SUBSCRIPTION + r":acknowledge$", pull_views.SubscriptionAcknowledge.as_view()),
    re_path(SUBSCRIPTION + r":modifyAckDeadline$", pull_views.SubscriptionModifyAckDeadline.as_view()),
]
