"""The console's headings are in the reader's language."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, label_for_field
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.utils import translation

pytestmark = pytest.mark.any_database

# The pages register themselves, as for pushhub.urls.
admin.autodiscover()

TRANSLATED = re.compile("^ID$|[\u4e00-\u9fff]")
MODEL_ADMINS = {
    model: model_admin
    for model, model_admin in admin.site._registry.items()
    if model.__module__.split(".")[0] != "django"
}


def request() -> HttpRequest:
    request = HttpRequest()
    request.user = User(is_superuser=True, is_staff=True, is_active=True)
    return request


def shown(model_admin: Any) -> set[str]:
    """Return the columns of a model's list, and the fields of its page unless that has a form of its own."""
    columns = {name for name in model_admin.get_list_display(request()) if name != "__str__"}
    has_page = model_admin.get_list_display_links(request(), [""]) and not model_admin.has_change_permission(request())
    is_plain = has_page and type(model_admin).get_form is admin.ModelAdmin.get_form
    return columns | (set(flatten_fieldsets(model_admin.get_fieldsets(request()))) if is_plain else set())


@pytest.mark.parametrize("model", MODEL_ADMINS, ids=lambda model: model._meta.label)
def test_every_heading_of_the_console_is_translated(model: Any) -> None:
    with translation.override("zh-hans"):
        labels = {name: str(label_for_field(name, model, MODEL_ADMINS[model])) for name in shown(MODEL_ADMINS[model])}
    assert {name: label for name, label in labels.items() if not TRANSLATED.search(label)} == {}
