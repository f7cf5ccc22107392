"""Bearer access tokens: which principal they authenticate, and when they stop."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django import DjangoAssertNumQueries

from pushhub.common.clock import utcnow
from pushhub.common.errors import Unauthenticated
from pushhub.common.principals import Principal
from subscriptions.identity import access_tokens, recent
from subscriptions.identity.callers import caller_from_authorization
from subscriptions.models import Topic
from subscriptions.models.credentials import AccessToken
from tests.restapi import Api

ADA = "user:ada@example.com"
EMAIL = "pusher@shop.iam.gserviceaccount.com"


@pytest.fixture(autouse=True)
def nobody_is_let_in_without_a_token(settings: Any) -> None:
    settings.ANONYMOUS = ""


@pytest.fixture
def account(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = "user:developer@localhost"
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    settings.ANONYMOUS = ""


def token_of(member: str = ADA, **options: Any) -> str:
    return access_tokens.create_access_token(member=member, **options).token


def caller_of(token: str) -> str:
    return caller_from_authorization(f"Bearer {token}").member


def is_refused(token: str) -> bool:
    try:
        caller_from_authorization(f"Bearer {token}")
    except Unauthenticated:
        return True
    return False


def test_the_bearer_of_a_token_is_its_member(db: None) -> None:
    assert caller_from_authorization(f"Bearer {token_of()}") == Principal(ADA)
    assert caller_from_authorization(f"bearer  {token_of('user:Bob@Example.com')} ") == Principal(
        "user:bob@example.com"
    )


def test_rest_checks_the_policies_for_the_bearer_of_a_token(api: Api) -> None:
    answer = api.get("topics", Authorization=f"Bearer {token_of()}")

    assert (answer.status, answer.error["status"]) == (403, "PERMISSION_DENIED")


def test_a_service_account_is_a_caller_until_it_is_disabled(api: Api, account: None) -> None:
    token = token_of(f"serviceAccount:{EMAIL}")
    assert caller_of(token) == f"serviceAccount:{EMAIL}"

    call = {"Authorization": f"Bearer {token_of('user:root@localhost')}"}
    assert api.post(f"serviceAccounts/{EMAIL}:disable", **call).status == 403
    api.sign_in("root@localhost", is_superuser=True)
    assert api.post(f"serviceAccounts/{EMAIL}:disable").status == 200

    assert is_refused(token)


@pytest.mark.parametrize(
    "member",
    ["user:", "serviceAccount:nobody@x.example", "group:all@example.com", "domain:x.example", "allUsers", "ada"],
)
def test_a_token_is_for_a_user_or_an_account_that_exists(db: None, member: str) -> None:
    with pytest.raises(CommandError):
        call_command("token_create", "--member", member)
    assert not AccessToken.objects.exists()


def test_an_expired_token_is_refused(db: None) -> None:
    token = token_of()
    AccessToken.objects.update(expires_at=utcnow())

    assert is_refused(token)


def test_a_remembered_caller_is_forgotten_when_its_token_ends(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent.recent_callers, "_seconds", 3600.0)
    token = token_of()
    clock = time.monotonic()
    monkeypatch.setattr(recent.recent_callers, "_clock", lambda: clock)
    assert caller_of(token) == ADA
    AccessToken.objects.update(expires_at=utcnow())
    assert caller_of(token) == ADA

    clock += 3601

    assert is_refused(token)


def test_the_hundredth_call_of_a_second_costs_no_query(db: None, django_assert_num_queries: Any) -> None:
    token = token_of()
    caller_of(token)

    with django_assert_num_queries(0):
        assert [caller_of(token) for _ in range(100)] == [ADA] * 100


def test_a_revoked_token_is_refused_at_once(db: None) -> None:
    token, other = token_of(), token_of()
    assert caller_of(token) == ADA

    assert access_tokens.revoke_access_token(token=token)

    assert is_refused(token)
    assert caller_of(other) == ADA


def test_words_that_are_no_token_make_no_process_forget_its_callers(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    """Anybody may send them, and each cost a write and a query per caller and process."""
    token = token_of()
    caller_of(token)

    with django_assert_num_queries(1):
        assert not access_tokens.revoke_access_token(token="pushhub_x")
    with django_assert_num_queries(0):
        assert caller_of(token) == ADA


def test_a_token_is_stored_as_its_digest_only(db: None) -> None:
    token = token_of()

    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM subscriptions_accesstoken")
        stored = str(cursor.fetchall())
    assert token.removeprefix("pushhub_") not in stored
    assert token not in repr(access_tokens.create_access_token(member=ADA))


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer pushhub_",
        "Bearer pushhub_" + "x" * 43,
        "Bearer " + "x" * 9000,
        "Bearer é",
        "Bearer \x00",
        "Bearer owner",
        "Basic YTpi",
        "Bearer a.b.c",
        "nonsense",
    ],
)
def test_every_other_credential_is_refused_in_the_same_words(db: None, header: str) -> None:
    with pytest.raises(Unauthenticated, match="^Request had invalid authentication credentials"):
        caller_from_authorization(header)


def test_a_digest_of_the_table_is_no_token(db: None) -> None:
    token_of()

    assert is_refused(AccessToken.objects.get().digest)


def test_the_emulator_token_is_anonymous_if_anonymous_callers_are_allowed(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = "user:developer@localhost"

    assert caller_of("owner") == "user:developer@localhost"
    assert api.put("topics/orders", Authorization="Bearer owner").status == 200
    for other in ("Owner", "owner2", "anonymous", "owner owner"):
        assert is_refused(other)


def test_a_page_of_another_site_gains_nothing_by_the_emulator_token(api: Api, settings: Any) -> None:
    settings.ANONYMOUS = "user:developer@localhost"

    answer = api.put("topics/orders", Authorization="Bearer owner", Origin="https://evil.example")

    assert answer.status == 403
    assert not Topic.objects.exists()


def test_a_refused_token_is_in_no_log_and_no_answer(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    answer = api.get("topics", Authorization="Bearer pushhub_this-is-secret")

    assert answer.status == 401
    assert "this-is-secret" not in str(answer.body)
    assert "this-is-secret" not in caplog.text


def test_an_operator_creates_lists_and_revokes_tokens(db: None, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("token_create", "--member", ADA, "--lifetime", "12h")
    call_command("token_create", "--member", "user:bob@example.com")
    ada, bob = capsys.readouterr().out.split()
    assert caller_of(ada) == ADA
    left = AccessToken.objects.get(member=ADA).expires_at - utcnow()
    assert timedelta(hours=11) < left <= timedelta(hours=12)

    call_command("token_list")
    listed = capsys.readouterr().out
    assert ada not in listed
    assert [line.split("\t")[2] for line in listed.splitlines()] == ["user:bob@example.com", ADA]

    call_command("token_revoke", "--member", ADA)
    call_command("token_revoke", str(AccessToken.objects.get().pk))
    assert is_refused(ada)
    assert is_refused(bob)


@pytest.mark.any_database
@pytest.mark.parametrize("lifetime", ["0s", "366d", "1", "1w", "-1h", "x", "1h30m"])
def test_a_lifetime_is_a_number_and_a_unit_up_to_a_year(db: None, lifetime: str) -> None:
    with pytest.raises(CommandError):
        call_command("token_create", "--member", ADA, f"--lifetime={lifetime}")
    assert not AccessToken.objects.exists()


@pytest.mark.parametrize("arguments", [[], ["1", "--member", ADA], ["999"]])
def test_a_token_that_is_not_there_is_not_revoked(db: None, arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("token_revoke", *arguments)
