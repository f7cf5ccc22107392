"""Rotation of signing keys: no verifier ever meets a token whose key it hasn't heard of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import google.auth.transport.requests
import jwt
import pytest
import requests
from django.core.management import CommandError, call_command
from google.oauth2 import id_token
from pytest_django.live_server_helper import LiveServer

from pushhub.celery import app
from pushhub.common.clock import utcnow
from subscriptions.identity import keys, rotation, tokens
from subscriptions.models.iam import SigningKey
from subscriptions.services import service_accounts
from subscriptions.tasks import maintain_signing_keys, sweep_credentials
from tests.restapi import Api

EMAIL = "pusher@shop.iam.gserviceaccount.com"
AUDIENCE = "https://shop.example/push"


@pytest.fixture
def account(api: Api) -> None:
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})


def minted() -> str:
    return tokens.mint_id_token(email=EMAIL, audience=AUDIENCE).token


def kid_of(token: str) -> str:
    kid: str = jwt.get_unverified_header(token)["kid"]
    return kid


def signs_since(generation: int, ago: timedelta) -> None:
    SigningKey.objects.filter(generation=generation).update(signs_from=utcnow() - ago)


@pytest.fixture
def verified(transactional_db: None, live_server: LiveServer) -> Iterator[Any]:
    """Verify a token with google-auth and the certificates that are served now."""
    with requests.Session() as session:
        transport = google.auth.transport.requests.Request(session)

        def verify(token: str) -> bool:
            certs = f"{live_server.url}/oauth2/v1/certs"
            try:
                id_token.verify_token(token, transport, audience=AUDIENCE, certs_url=certs)
            except ValueError:
                return False
            return True

        yield verify


def test_old_tokens_verify_through_the_overlap(verified: Any) -> None:
    service_accounts.create_service_account(project="shop", request={"accountId": "pusher"})
    # Given a token, and a next key
    old = minted()
    first = kid_of(old)
    second = rotation.rotate_key().kid
    # Then verifiers see the next key while the first key signs
    assert set(requests_of_certs(verified)) == {first, second}
    assert kid_of(minted()) == first
    # When the next key signs
    signs_since(2, timedelta(0))
    new = minted()
    # Then tokens of both keys are valid
    assert kid_of(new) == second
    assert verified(old)
    assert verified(new)
    # Until all tokens of the first key have expired
    signs_since(2, rotation.OUTLIVED - timedelta(seconds=10))
    assert rotation.retire_keys() == 0
    assert verified(old)
    signs_since(2, rotation.OUTLIVED)
    assert rotation.retire_keys() == 1
    assert not verified(old)
    assert verified(new)


def requests_of_certs(_: Any) -> list[str]:
    certificates: dict[str, str] = Api().get("/oauth2/v1/certs").body
    return list(certificates)


def test_a_key_is_announced_and_outlived_for_longer_than_verifiers_cache(api: Api) -> None:
    header = api.client.get("/oauth2/v3/certs").headers["Cache-Control"]

    assert f"max-age={rotation.CERTS_MAX_AGE_SECONDS}" in header
    max_age = timedelta(seconds=rotation.CERTS_MAX_AGE_SECONDS)
    assert max_age < rotation.ANNOUNCED
    assert timedelta(seconds=tokens.LIFETIME_SECONDS) + max_age < rotation.OUTLIVED


def test_whenever_a_verifier_asked_it_knows_each_token_that_may_reach_it(
    db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four days in steps of ten minutes, with a rotation a day."""
    settings.KEY_ROTATION_DAYS = 1
    now = datetime(2030, 1, 1, tzinfo=UTC)
    for clock in (
        "subscriptions.identity.keys.utcnow",
        "subscriptions.identity.rotation.utcnow",
        "django.utils.timezone.now",
    ):
        monkeypatch.setattr(clock, lambda: now)
    step = timedelta(seconds=rotation.CERTS_MAX_AGE_SECONDS)
    signed_with: list[str] = []
    known: set[str] = set()
    for _ in range(4 * 24 * 6):
        signed_with.append(keys.signing_key().kid)
        # The keys now, and at the time when a verifier may have fetched them last
        served = {row.kid for row in keys.published_keys()}
        reaching = set(signed_with[-7:])  # tokens of the last hour
        assert reaching <= served
        assert signed_with[-1] in (known or served)
        known = served
        maintain_signing_keys()
        now += step

    assert len(set(signed_with)) == 4
    assert SigningKey.objects.filter(retired_at=None).count() <= 2


@pytest.mark.parametrize(("days", "age", "created"), [(30, 29, 0), (30, 30, 1), (0, 400, 0)])
def test_the_next_key_is_created_when_the_last_is_old_enough(
    db: None, settings: Any, days: int, age: int, created: int
) -> None:
    settings.KEY_ROTATION_DAYS = days
    keys.signing_key()
    SigningKey.objects.update(created_at=utcnow() - timedelta(days=age))

    assert rotation.maintain_keys() == {"created": created, "retired": 0}
    assert rotation.maintain_keys() == {"created": 0, "retired": 0}
    assert SigningKey.objects.count() == 1 + created


def test_the_schedule_does_not_create_the_first_key(db: None) -> None:
    assert rotation.maintain_keys() == {"created": 0, "retired": 0}
    assert not SigningKey.objects.exists()


def test_asking_twice_for_the_next_key_creates_one_key(db: None) -> None:
    assert rotation.rotate_key() == rotation.rotate_key()
    assert SigningKey.objects.count() == 2


def test_the_private_half_of_a_retired_key_is_deleted(db: None) -> None:
    keys.signing_key()
    rotation.rotate_key()
    signs_since(2, rotation.OUTLIVED)

    rotation.retire_keys()

    assert SigningKey.objects.get(generation=1).private_key == ""


def test_after_a_leak_no_token_of_the_leaked_key_is_valid(api: Api, account: None) -> None:
    stolen = minted()
    rotation.rotate_key()

    call_command("signing_keys", "replace")

    assert api.get(f"/tokeninfo?id_token={stolen}").status == 400
    assert api.get(f"/tokeninfo?id_token={minted()}").status == 200
    assert list(api.get("/oauth2/v1/certs").body) == [keys.signing_key().kid]


def test_a_new_secret_re_encrypts_the_keys_and_creates_none(db: None, settings: Any) -> None:
    old = keys.signing_key().kid
    settings.KEY_ENCRYPTION_KEY_PREVIOUS, settings.KEY_ENCRYPTION_KEY = settings.KEY_ENCRYPTION_KEY, "the new secret"
    assert keys.signing_key().kid == old

    assert rotation.reencrypt_keys() == 1

    settings.KEY_ENCRYPTION_KEY_PREVIOUS = ""
    assert keys.signing_key().kid == old
    assert rotation.reencrypt_keys() == 0


def test_a_key_that_cannot_be_decrypted_stays_unchanged(db: None, settings: Any) -> None:
    keys.signing_key()
    before = SigningKey.objects.get().private_key
    settings.KEY_ENCRYPTION_KEY = "another secret"

    assert rotation.reencrypt_keys() == 0
    assert SigningKey.objects.get().private_key == before


def test_a_published_next_key_is_preferred_to_a_new_one(db: None, settings: Any) -> None:
    keys.signing_key()
    settings.KEY_ENCRYPTION_KEY = "another secret"
    with_new_secret = SigningKey.objects.count()
    keys.make_key(signs_from=utcnow() + timedelta(hours=1))

    assert keys.signing_key().kid == SigningKey.objects.get(generation=with_new_secret + 1).kid


def test_an_operator_lists_and_rotates_keys_without_seeing_a_secret(
    db: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    keys.signing_key()
    call_command("signing_keys", "rotate")
    call_command("signing_keys", "list")
    call_command("signing_keys", "reencrypt")
    signs_since(2, timedelta(0))
    call_command("signing_keys", "list")
    signs_since(2, rotation.OUTLIVED)
    maintain_signing_keys()
    call_command("signing_keys", "list")

    printed = capsys.readouterr()
    states = [line.split("\t")[1] for line in printed.out.splitlines() if "\t" in line]
    assert states == ["next", "signing", "signing", "published", "signing", "retired"]
    sealed = SigningKey.objects.get(generation=2).private_key
    for text in (printed.out, printed.err, caplog.text):
        assert "PRIVATE" not in text
        assert sealed[8:40] not in text


def test_an_action_must_be_named(db: None) -> None:
    with pytest.raises(CommandError):
        call_command("signing_keys")


def test_a_periodic_task_that_waits_until_the_next_is_sent_is_dropped() -> None:
    entries = app.conf.beat_schedule.values()
    assert [entry["options"]["expires"] for entry in entries] == [entry["schedule"] for entry in entries]


def test_beat_schedules_only_tasks_that_exist() -> None:
    asked = {entry["task"] for entry in app.conf.beat_schedule.values()}

    app.loader.import_default_modules()
    assert {maintain_signing_keys.name, sweep_credentials.name} <= asked <= set(app.tasks)
