"""The URLs of identities: service accounts and their keys, tokens, projects."""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from subscriptions.api.identity import account_keys, oauth2_token, projects, service_accounts

PROJECT = r"^v1/projects/(?P<project>[^/]+)"
ACCOUNTS = PROJECT + r"/serviceAccounts"
ACCOUNT = ACCOUNTS + r"/(?P<account>[^/]+)"
KEY = ACCOUNT + r"/keys/(?P<key>[^/]+)"

urlpatterns: list[URLPattern] = [
    path("token", oauth2_token.Token.as_view(), name="token"),
    path("revoke", oauth2_token.Revoke.as_view(), name="revoke"),
    path("robot/v1/metadata/x509/<str:account>", account_keys.AccountCerts.as_view(), name="robot-certs"),
    re_path(r"^v1/projects$", projects.ProjectList.as_view()),
    re_path(PROJECT + r":undelete$", projects.ProjectUndelete.as_view()),
    re_path(PROJECT + r":getAncestry$", projects.ProjectAncestry.as_view()),
    re_path(PROJECT + r"$", projects.ProjectDetail.as_view()),
    re_path(ACCOUNTS + r"$", service_accounts.ServiceAccountList.as_view()),
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
]
