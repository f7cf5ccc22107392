"""The URLs of policies and roles. They precede those of the resources, whose last segment may contain a colon."""

from __future__ import annotations

from django.urls import URLPattern, re_path

from subscriptions.api import policies
from subscriptions.api.identity import roles

ORGANIZATION = r"^v1/organizations/(?P<organization>[^/]+)"
FOLDER = r"^v1/folders/(?P<folder>[^/]+)"
PROJECT = r"^v1/projects/(?P<project>[^/]+)"

#: The collections that have policies, their URLs, and the view that reads a policy.
COLLECTIONS: dict[str, tuple[str, type[policies.PolicyView]]] = {
    "organizations": (ORGANIZATION, policies.PolicyPosted),
    "folders": (FOLDER, policies.PolicyPosted),
    "projects": (PROJECT, policies.PolicyPosted),
    "topics": (PROJECT + r"/topics/(?P<topic>[^/]+)", policies.PolicyRead),
    "subscriptions": (PROJECT + r"/subscriptions/(?P<subscription>[^/]+)", policies.PolicyRead),
    "snapshots": (PROJECT + r"/snapshots/(?P<snapshot>[^/]+)", policies.PolicyRead),
    "schemas": (PROJECT + r"/schemas/(?P<schema>[^/]+)", policies.PolicyRead),
    "serviceAccounts": (PROJECT + r"/serviceAccounts/(?P<account>[^/]+)", policies.PolicyPosted),
}

#: Resource Manager has policies in later versions, too; folders only there. Their form is the same.
LATER = {"organizations": ("v3",), "folders": ("v2", "v3"), "projects": ("v3",)}


def _policy_patterns() -> list[URLPattern]:
    patterns = []
    for collection, (address, reading) in COLLECTIONS.items():
        views: dict[str, type[policies.PolicyView]] = {
            "getIamPolicy": reading,
            "setIamPolicy": policies.PolicyWrite,
            "testIamPermissions": policies.PermissionsTest,
        }
        for verb, view in views.items():
            shown = policies.documented(view, collection)
            patterns.append(re_path(f"{address}:{verb}$", shown.as_view()))
            for version in LATER.get(collection, ()):
                later = address.replace("v1", version, 1)
                patterns.append(re_path(f"{later}:{verb}$", shown.as_view(schema=None)))
    return patterns


urlpatterns: list[URLPattern] = [
    *_policy_patterns(),
    re_path(r"^v1/roles$", roles.PredefinedRoleList.as_view()),
    re_path(r"^v1/roles/(?P<role>[^/]+)$", roles.PredefinedRoleDetail.as_view()),
    re_path(PROJECT + r"/roles$", roles.ProjectRoleList.as_view()),
    re_path(PROJECT + r"/roles/(?P<role>[^/]+):undelete$", roles.ProjectRoleUndelete.as_view()),
    re_path(PROJECT + r"/roles/(?P<role>[^/]+)$", roles.ProjectRoleDetail.as_view()),
    re_path(ORGANIZATION + r"/roles$", roles.OrganizationRoleList.as_view()),
    re_path(ORGANIZATION + r"/roles/(?P<role>[^/]+):undelete$", roles.OrganizationRoleUndelete.as_view()),
    re_path(ORGANIZATION + r"/roles/(?P<role>[^/]+)$", roles.OrganizationRoleDetail.as_view()),
]
