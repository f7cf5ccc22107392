"""Expired credentials are removed; valid credentials stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.models import ServiceAccount
from subscriptions.models.credentials import AccessToken, UsedAssertion
from subscriptions.models.iam import Policy
from subscriptions.services import service_accounts
from subscriptions.tasks import sweep_credentials

pytestmark = pytest.mark.django_db
ACCOUNT = "projects/shop/serviceAccounts/pusher@shop.iam.gserviceaccount.com"


def test_tokens_and_assertions_are_removed_when_they_have_ended() -> None:
    for minutes in (-1, 1):
        end = utcnow() + timedelta(minutes=minutes)
        issued = access_tokens.create_access_token(member="user:ada@example.com")
        AccessToken.objects.filter(pk=issued.row.pk).update(expires_at=end)
        UsedAssertion.objects.create(digest=str(minutes), first_used_at=utcnow(), expires_at=end)

    assert sweep_credentials() == {"tokens": 1, "assertions": 1, "accounts": 0}

    assert AccessToken.objects.count() == UsedAssertion.objects.count() == 1


def test_a_deleted_account_is_removed_with_its_policy_after_thirty_days() -> None:
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})
    grants.grant_role(get_resource(ACCOUNT), role="roles/iam.serviceAccountUser", member="user:ada@example.com")
    service_accounts.delete_service_account(name=ACCOUNT)
    for days, left in ((29, 1), (31, 0)):
        ServiceAccount.objects.update(deleted_at=utcnow() - timedelta(days=days))
        sweep_credentials()
        assert ServiceAccount.objects.count() == left
    assert not Policy.objects.filter(kind="serviceAccount").exists()
