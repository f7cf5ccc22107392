"""Service accounts (IAM v1): the identities that sign push requests."""

from __future__ import annotations

from datetime import timedelta

from django.db import IntegrityError, transaction

from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import AlreadyExists, FailedPrecondition, InvalidArgument, clipped
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors
from subscriptions.iam import grants
from subscriptions.iam.members import deleted_account
from subscriptions.identity.recent import forget_callers
from subscriptions.models import ServiceAccount
from subscriptions.resources import fields, masks
from subscriptions.resources.render import service_account_resource
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import update_request

MUTABLE = frozenset({"displayName", "description"})
#: How long a deleted account can be undeleted, as at Google.
UNDELETE_FOR = timedelta(days=30)
DELETED = "deleted:"


def create_service_account(*, project: str, request: object, caller: Principal = OPERATOR) -> ServiceAccount:
    """Create an account. `project` is the project's id or number, `request` a CreateServiceAccountRequest."""
    account_request = fields.CREATE_SERVICE_ACCOUNT.read(request)
    account_id = account_request.get("accountId", "")
    if not names.ACCOUNT_PATTERN.fullmatch(account_id):
        raise InvalidArgument(
            f"Invalid service account id given (account_id={clipped(account_id)}). It must be 6 to 30 characters "
            "long and match [a-z]([-a-z0-9]*[a-z0-9]).",
            field="accountId",
        )
    details = account_request.get("serviceAccount", {})
    with transaction.atomic():
        owner = ensure_project(project=project, caller=caller)
        email = names.service_account_email(owner.project_id, account_id)
        if names.is_agent_email(email):
            raise FailedPrecondition(f"Accounts of the project {clipped(owner.project_id)} are service agents.")
        account = ServiceAccount(
            project=owner,
            email=email,
            display_name=details.get("displayName", ""),
            description=details.get("description", ""),
        )
        already_exists = AlreadyExists(f"Service account {account_id} already exists within project {owner.name}.")
        if ServiceAccount.objects.filter(email=email).exists():
            raise already_exists
        try:
            with transaction.atomic():
                account.save(force_insert=True)
        except IntegrityError:
            raise already_exists from None
        grants.forget_member(f"serviceAccount:{email}")
    return account


def update_service_account(*, name: str, request: object) -> ServiceAccount:
    """Update an account. `request` is a PatchServiceAccountRequest with the account and a mask."""
    values, paths = update_request(request, name, fields.PATCH_SERVICE_ACCOUNT, "serviceAccount", MUTABLE)
    with transaction.atomic():
        account = selectors.get_service_account(name=name)
        merged = masks.masked(service_account_resource(account), values, paths, fields.SERVICE_ACCOUNT)
        account.display_name = merged.get("displayName", "")
        account.description = merged.get("description", "")
        account.save()
    return account


def disable_service_account(*, name: str) -> None:
    """Disable an account: it gets no more tokens. Push tokens that it already signed stay valid for up to one hour."""
    _set_disabled(name, True)


def enable_service_account(*, name: str) -> None:
    """Enable an account again."""
    _set_disabled(name, False)


def _set_disabled(name: str, disabled: bool) -> None:
    with transaction.atomic():
        account = selectors.get_service_account(name=name)
        account.disabled = disabled
        account.save(update_fields=["disabled", "updated_at"])
    forget_callers()


def delete_service_account(*, name: str) -> None:
    """Delete an account. It can be undeleted for 30 days by its unique id; its email is free at once.

    Subscriptions that use it keep its name, and their pushes fail because they get no token.
    """
    with transaction.atomic():
        account = selectors.get_service_account(name=name, lock=True)
        account.access_tokens.all().delete()
        # The next account with this email must not inherit the grants of this one.
        grants.rename_member(
            old=f"serviceAccount:{account.email}", new=deleted_account(account.email, unique_id=account.unique_id)
        )
        account.email = f"{DELETED}{account.email}?uid={account.unique_id}"  # which no lookup finds
        account.deleted_at = utcnow()
        account.save()
    forget_callers()


def undelete_service_account(*, name: str) -> ServiceAccount:
    """Undelete an account. `name` has its unique id, because several deleted accounts may have had its email."""
    with transaction.atomic():
        account = selectors.get_deleted_service_account(name=name)
        email = account.email.removeprefix(DELETED).rpartition("?uid=")[0]
        if ServiceAccount.objects.filter(email=email).exists():
            raise AlreadyExists(f"Service account {email} exists again. Delete that one first.")
        account.email = email
        grants.rename_member(
            old=deleted_account(email, unique_id=account.unique_id), new=f"serviceAccount:{account.email}"
        )
        account.deleted_at = None
        account.save()
    return account


def purge_service_accounts() -> int:
    """Remove the accounts that can no longer be undeleted. Returns how many."""
    expired = ServiceAccount.objects.filter(deleted_at__lt=utcnow() - UNDELETE_FOR)
    count = 0
    for account in expired:
        account.delete()  # one at a time, because each deletes its policy
        count += 1
    return count
