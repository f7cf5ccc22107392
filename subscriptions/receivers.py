"""What follows from a changed row, whether a service, the console or a shell changes it, and from a new connection."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.db import Error, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from pushhub.common.databases import SESSION_SETTINGS
from pushhub.common.outages import outage_of
from pushhub.common.rows import row_or_none
from subscriptions import audit
from subscriptions.iam import access, epoch, tree
from subscriptions.models import Folder, Project, Subscription, Topic
from subscriptions.models.iam import GroupMember, Perimeter, Policy, RoleResource

#: The tables that decisions of access depend on, and what the publish writer keeps of a topic.
DECISIVE: tuple[type[Model], ...] = (Policy, RoleResource, GroupMember, Project, Folder, Topic, Subscription)
#: Rows that aren't administrative changes: the log itself, and what calls leave behind.
NOT_AUDITED = frozenset({"AccessEpoch", "AuditEntry", "UsedAssertion"})


def connect() -> None:
    connection_created.connect(set_up_postgresql, dispatch_uid="database.postgresql")
    connection_created.connect(renew_after_outages, dispatch_uid="database.outages")
    for model in DECISIVE:
        post_save.connect(forget_decisions, sender=model, dispatch_uid="iam.saved")
        post_delete.connect(forget_decisions, sender=model, dispatch_uid="iam.deleted")
    for model in apps.get_app_config("subscriptions").get_models():
        if model.__name__ in tree.KINDS:
            post_delete.connect(delete_policy, sender=model, dispatch_uid="iam.policy")
    for model in audited_models():
        pre_save.connect(note_before, sender=model, dispatch_uid="audit.before")
        post_save.connect(audit_saved, sender=model, dispatch_uid="audit.saved")
        pre_delete.connect(note_before, sender=model, dispatch_uid="audit.leaving")
        post_delete.connect(audit_deleted, sender=model, dispatch_uid="audit.deleted")
    m2m_changed.connect(audit_members, sender=Perimeter.projects.through, dispatch_uid="audit.members")


def set_up_postgresql(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Set what each new connection to PostgreSQL needs."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("; ".join(f"SET {name} = '{value}'" for name, value in SESSION_SETTINGS.items()))


def renew_after_outages(*, connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Have the connection closed after an outage, when Django looks whether it is still good.

    To Django it is: the server that has become a standby answers, and so does the file that was opened while its disk
    was read-only. Neither would ever be written to again.
    """
    if _closed_after_outages not in connection.execute_wrappers:
        connection.execute_wrappers.append(_closed_after_outages)


def _closed_after_outages(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    try:
        return execute(sql, params, many, context)
    except Error as error:
        if outage_of(error):
            context["connection"].close_at = 0.0
        raise


def audited_models() -> list[type[Model]]:
    """Return the models that administration changes, including the console's users."""
    own = apps.get_app_config("subscriptions").get_models()
    return [User, *(model for model in own if model.__name__ not in NOT_AUDITED)]


def note_before(sender: type[Model], *, instance: Any, **_: Any) -> None:
    """Keep a picture of the stored row, to compare the new one with."""
    stored = row_or_none(sender._default_manager.filter(pk=instance.pk)) if instance.pk is not None else None
    instance._audit_before = audit.picture(stored) if stored is not None else None


def audit_saved(sender: object, *, instance: Any, created: bool, **_: Any) -> None:
    before = None if created else instance._audit_before
    audit.written(instance, action="create" if created else "update", before=before, after=audit.picture(instance))


def audit_deleted(sender: object, *, instance: Any, **_: Any) -> None:
    audit.written(instance, action="delete", before=instance._audit_before, after=None)


def audit_members(sender: object, *, instance: Any, action: str, **_: Any) -> None:
    """Log the projects of a perimeter before and after a change."""
    members = sorted(audit.resource_name(project) for project in instance.projects.all())
    if action.startswith("pre_"):
        instance._audit_members = members
    else:
        audit.written(
            instance, action="update", before={"projects": instance._audit_members}, after={"projects": members}
        )


def forget_decisions(sender: object, **_: Any) -> None:
    """Forget now, for the rest of this transaction, and after the commit, when other threads see the change."""
    access.forget_decisions()
    transaction.on_commit(access.forget_decisions)
    epoch.end_after_commit()


def delete_policy(sender: object, *, instance: Model, **_: Any) -> None:
    """Delete the policy of a deleted resource, so that a new resource with its name starts without one."""
    Policy.objects.filter(kind=tree.kind_of(instance).word, resource_pk=instance.pk).delete()
