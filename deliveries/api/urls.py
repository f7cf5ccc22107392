"""The data plane's addresses."""

from __future__ import annotations

from django.urls import path, re_path

from deliveries.api import dead_letters, diagnosis, health, pull_views, snapshot_views
from deliveries.api.messages import MessageDetail
from deliveries.api.metric_descriptors import MetricDescriptorDetail, MetricDescriptorList
from deliveries.api.time_series import TimeSeriesList
from deliveries.api.views import PublishView

PROJECT = r"^v1/projects/(?P<project>[^/]+)"
TOPIC = PROJECT + r"/topics/(?P<topic>[^/]+)"
SUBSCRIPTION = PROJECT + r"/subscriptions/(?P<subscription>[^/]+)"

urlpatterns = [
    path("metrics", health.metrics, name="metrics"),
    path("readyz", health.readyz, name="readyz"),
    re_path(TOPIC + r":publish$", PublishView.as_view()),
    re_path(r"^v3/projects/(?P<project>[^/]+)/timeSeries$", TimeSeriesList.as_view()),
    re_path(r"^v3/projects/(?P<project>[^/]+)/metricDescriptors$", MetricDescriptorList.as_view()),
    re_path(r"^v3/projects/(?P<project>[^/]+)/metricDescriptors/(?P<metric>.+)$", MetricDescriptorDetail.as_view()),
    re_path(SUBSCRIPTION + r":pull$", pull_views.SubscriptionPull.as_view()),
    re_path(SUBSCRIPTION + r":acknowledge$", pull_views.SubscriptionAcknowledge.as_view()),
    re_path(PROJECT + r"/messages/(?P<message>[^/:]+)$", MessageDetail.as_view()),
    re_path(SUBSCRIPTION + r"/deadLetters$", dead_letters.DeadLetterList.as_view()),
    re_path(SUBSCRIPTION + r":redriveDeadLetters$", dead_letters.DeadLetterRedrive.as_view()),
    re_path(SUBSCRIPTION + r":discardDeadLetters$", dead_letters.DeadLetterDiscard.as_view()),
    re_path(SUBSCRIPTION + r":deadLetterMessages$", dead_letters.MessagesDeadLetter.as_view()),
    re_path(SUBSCRIPTION + r":skipMessages$", dead_letters.MessagesSkip.as_view()),
    re_path(SUBSCRIPTION + r":diagnose$", diagnosis.SubscriptionDiagnose.as_view()),
    re_path(SUBSCRIPTION + r":seek$", snapshot_views.SubscriptionSeek.as_view()),
    re_path(PROJECT + r"/snapshots$", snapshot_views.SnapshotList.as_view()),
    re_path(PROJECT + r"/snapshots/(?P<snapshot>[^/:]+)$", snapshot_views.SnapshotDetail.as_view()),
    re_path(TOPIC + r"/snapshots$", snapshot_views.TopicSnapshotList.as_view()),
    re_path(SUBSCRIPTION + r":modifyAckDeadline$", pull_views.SubscriptionModifyAckDeadline.as_view()),
]
