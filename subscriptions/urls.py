"""The URLs of the control plane. Those under /v1/ are Google's; each method's address is at its function."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from subscriptions.api import pages, policies, schemas, subscriptions, topics, transforms
from subscriptions.api.base import MethodNotFound
from subscriptions.api.discovery import Discovery
from subscriptions.api.identity import account_keys, oauth2, oauth2_token, projects, roles, service_accounts
from subscriptions.api.routes import list_patterns

IDENTITY = (oauth2, oauth2_token, roles, projects, service_accounts, account_keys)
urlpatterns: list[URLPattern | URLResolver] = [
    path("", pages.index, name="index"),
    path("healthz", pages.healthz, name="healthz"),
    path("schema", pages.for_staff(SpectacularJSONAPIView.as_view()), name="schema"),
    path("docs", pages.docs, name="docs"),
    re_path(r"^docs/guide/(?P<path>.*)$", pages.guide, name="guide"),
    path("$discovery/rest", Discovery.as_view()),
    path(".well-known/openid-configuration", oauth2.OpenidConfiguration.as_view(), name="openid-configuration"),
    *list_patterns(*IDENTITY, topics, subscriptions, schemas, policies, transforms),
    re_path(r"^v[123]/", MethodNotFound.as_view()),
]
