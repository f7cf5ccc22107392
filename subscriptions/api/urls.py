"""The control plane's addresses. Those under /v1/ are Google's."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

from subscriptions.api import account_keys, oauth2, oauth2_token, pages, service_accounts, subscriptions, topics
from subscriptions.api.base import MethodNotFound

#: A segment may hold anything; whether it is a name is for `pushhub.names` to say, in an answer with a reason.
PROJECT = r"^v1/projects/(?P<project>[^/]+)"
TOPIC = PROJECT + r"/topics/(?P<topic>[^/]+)"
SUBSCRIPTION = PROJECT + r"/subscriptions/(?P<subscription>[^/]+)"
ACCOUNT = PROJECT + r"/serviceAccounts/(?P<account>[^/]+)"
KEY = ACCOUNT + r"/keys/(?P<key>[^/]+)"

urlpatterns: list[URLPattern] = [
    path("", pages.index, name="index"),
    path("healthz", pages.healthz, name="healthz"),
    path("schema", SpectacularJSONAPIView.as_view(), name="schema"),
    path("docs", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
    path("oauth2/v1/certs", oauth2.PemCerts.as_view(), name="certs-v1"),
    path("oauth2/v3/certs", oauth2.JwkCerts.as_view(), name="certs-v3"),
    path("token", oauth2_token.Token.as_view(), name="token"),
    path("revoke", oauth2_token.Revoke.as_view(), name="revoke"),
    path("robot/v1/metadata/x509/<str:account>", account_keys.AccountCerts.as_view(), name="robot-certs"),
    path("tokeninfo", oauth2.TokenInfo.as_view(), name="tokeninfo"),
    path(".well-known/openid-configuration", oauth2.OpenidConfiguration.as_view(), name="openid-configuration"),
    re_path(PROJECT + r"/topics$", topics.TopicList.as_view()),
    re_path(TOPIC + r"/subscriptions$", topics.TopicSubscriptionList.as_view()),
    re_path(TOPIC + r"$", topics.TopicDetail.as_view()),
    re_path(PROJECT + r"/subscriptions$", subscriptions.SubscriptionList.as_view()),
    re_path(SUBSCRIPTION + r":modifyPushConfig$", subscriptions.SubscriptionPushConfig.as_view()),
    re_path(SUBSCRIPTION + r":detach$", subscriptions.SubscriptionDetach.as_view()),
    re_path(SUBSCRIPTION + r"$", subscriptions.SubscriptionDetail.as_view()),
    re_path(PROJECT + r"/serviceAccounts$", service_accounts.ServiceAccountList.as_view()),
    re_path(ACCOUNT + r":disable$", service_accounts.ServiceAccountDisable.as_view()),
    re_path(ACCOUNT + r":enable$", service_accounts.ServiceAccountEnable.as_view()),
    re_path(ACCOUNT + r":undelete$", service_accounts.ServiceAccountUndelete.as_view()),
    re_path(ACCOUNT + r":generateAccessToken$", service_accounts.ServiceAccountAccessToken.as_view()),
    re_path(ACCOUNT + r":generateIdToken$", service_accounts.ServiceAccountIdToken.as_view()),
    re_path(ACCOUNT + r"/keys$", account_keys.ServiceAccountKeyList.as_view()),
    re_path(ACCOUNT + r"/keys:upload$", account_keys.ServiceAccountKeyUpload.as_view()),
    re_path(KEY + r":disable$", account_keys.ServiceAccountKeyDisable.as_view()),
    re_path(KEY + r":enable$", account_keys.ServiceAccountKeyEnable.as_view()),
    re_path(KEY + r"$", account_keys.ServiceAccountKeyDetail.as_view()),
    re_path(ACCOUNT + r"$", service_accounts.ServiceAccountDetail.as_view()),
    re_path(r"^v1/", MethodNotFound.as_view()),
]
