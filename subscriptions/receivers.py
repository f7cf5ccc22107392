"""What follows from rows that change, whoever changes them: a service, the admin or a shell."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.db import transaction
from django.db.models import Model
from django.db.models.signals import post_delete, post_save

from subscriptions.iam import access, tree
from subscriptions.models import Folder, GroupMember, Policy, Project, RoleResource

#: What decisions of access rest on.
DECISIVE: tuple[type[Model], ...] = (Policy, RoleResource, GroupMember, Project, Folder)


def connect() -> None:
    for model in DECISIVE:
        post_save.connect(forget_decisions, sender=model, dispatch_uid="iam.saved")
        post_delete.connect(forget_decisions, sender=model, dispatch_uid="iam.deleted")
    for model in apps.get_app_config("subscriptions").get_models():
        if model.__name__ in tree.KINDS:
            post_delete.connect(delete_policy, sender=model, dispatch_uid="iam.policy")


def forget_decisions(sender: object, **_: Any) -> None:
    """At once for what this transaction decides next, and once more when others can see the change."""
    access.forget_decisions()
    transaction.on_commit(access.forget_decisions)


def delete_policy(sender: object, *, instance: Model, **_: Any) -> None:
    """A resource made under the same name later begins without one."""
    Policy.objects.filter(kind=tree.kind_of(instance).word, resource_pk=instance.pk).delete()
