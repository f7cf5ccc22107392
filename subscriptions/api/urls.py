"""The URLs of the control plane. Those under /v1/ are Google's."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerSplitView

from subscriptions.api import pages, schemas, subscriptions, topics, transforms
from subscriptions.api.base import MethodNotFound
from subscriptions.api.discovery import Discovery
from subscriptions.api.identity import iam_urls, oauth2, urls

#: A segment may hold anything. `pushhub.common.names` checks it and returns a helpful error.
PROJECT = r"^v1/projects/(?P<project>[^/]+)"
TOPIC = PROJECT + r"/topics/(?P<topic>[^/]+)"
SCHEMA = PROJECT + r"/schemas/(?P<schema>[^/]+)"
SUBSCRIPTION = PROJECT + r"/subscriptions/(?P<subscription>[^/]+)"

urlpatterns: list[URLPattern | URLResolver] = [
    path("", pages.index, name="index"),
    path("healthz", pages.healthz, name="healthz"),
    path("schema", pages.for_staff(SpectacularJSONAPIView.as_view()), name="schema"),
    path("docs", pages.for_staff(SpectacularSwaggerSplitView.as_view(url_name="schema")), name="docs"),
    path("$discovery/rest", Discovery.as_view()),
    path("oauth2/v1/certs", oauth2.PemCerts.as_view(), name="certs-v1"),
    path("oauth2/v3/certs", oauth2.JwkCerts.as_view(), name="certs-v3"),
    path("tokeninfo", oauth2.TokenInfo.as_view(), name="tokeninfo"),
    path(".well-known/openid-configuration", oauth2.OpenidConfiguration.as_view(), name="openid-configuration"),
    re_path(PROJECT + r":validateMessageTransform$", transforms.ValidateMessageTransform.as_view()),
    re_path(PROJECT + r":testMessageTransforms$", transforms.TestMessageTransforms.as_view()),
    path("", include(iam_urls)),
    path("", include(urls)),
    re_path(PROJECT + r"/topics$", topics.TopicList.as_view()),
    re_path(TOPIC + r"/subscriptions$", topics.TopicSubscriptionList.as_view()),
    re_path(TOPIC + r"$", topics.TopicDetail.as_view()),
    re_path(PROJECT + r"/subscriptions$", subscriptions.SubscriptionList.as_view()),
    re_path(SUBSCRIPTION + r":modifyPushConfig$", subscriptions.SubscriptionPushConfig.as_view()),
    re_path(SUBSCRIPTION + r":detach$", subscriptions.SubscriptionDetach.as_view()),
    re_path(SUBSCRIPTION + r":pause$", subscriptions.SubscriptionPause.as_view()),
    re_path(SUBSCRIPTION + r":resume$", subscriptions.SubscriptionResume.as_view()),
    re_path(SUBSCRIPTION + r"$", subscriptions.SubscriptionDetail.as_view()),
    re_path(PROJECT + r"/schemas$", schemas.SchemaList.as_view()),
    re_path(PROJECT + r"/schemas:validate$", schemas.SchemaValidate.as_view()),
    re_path(PROJECT + r"/schemas:validateMessage$", schemas.SchemaValidateMessage.as_view()),
    re_path(SCHEMA + r":commit$", schemas.SchemaCommit.as_view()),
    re_path(SCHEMA + r":rollback$", schemas.SchemaRollback.as_view()),
    re_path(SCHEMA + r":deleteRevision$", schemas.SchemaDeleteRevision.as_view()),
    re_path(SCHEMA + r":listRevisions$", schemas.SchemaRevisionList.as_view()),
    re_path(SCHEMA + r"$", schemas.SchemaDetail.as_view()),
    re_path(r"^v1/", MethodNotFound.as_view()),
]
