"""The addresses of policies and roles. They come before those of the resources, whose last segment may hold a colon."""

from __future__ import annotations

from django.urls import URLPattern, re_path

from subscriptions.api import policies
from subscriptions.api.identity import roles

ORGANIZATION = r"^v1/organizations/(?P<organization>[^/]+)"
FOLDER = r"^v1/folders/(?P<folder>[^/]+)"
PROJECT = r"^v1/projects/(?P<project>[^/]+)"

#: The collections with policies, their addresses, and how a policy is read there.
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

#: Resource Manager has its policies in later versions as well, of folders nowhere else. Their form is the same.
LATER = {"organizations": ("v3",), "folders": ("v2", "v3"), "projects": ("v3",)}


def _policy_patterns() -> list[URLPattern]:
    found = []
    for collection, (address, reading) in COLLECTIONS.items():
        views: dict[str, type[policies.PolicyView]] = {
            "getIamPolicy": reading,
            "setIamPolicy": policies.PolicyWrite,
            "testIamPermissions": policies.PermissionsTest,
        }
        for verb, view in views.items():
            shown = policies.documented(view, collection)
            found.append(re_path(f"{address}:{verb}$", shown.as_view()))
            for version in LATER.get(collection, ()):
                later = address.replace("v1", version, 1)
                found.append(re_path(f"{later}:{verb}$", shown.as_view(schema=None)))
    return found


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
