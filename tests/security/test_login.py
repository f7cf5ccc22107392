"""The console's login: guessing is bounded for every caller, and nobody is locked out permanently."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from pushhub.common import throttle
from pushhub.common.throttle import BUCKETS, WINDOW_SECONDS, LocalCounters
from subscriptions.console import login
from tests.clocks import Clock

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

PASSWORD = "a password of some length"
LOGIN = "/admin/login/?next=/admin/"
NO_REDIS = "unix:///nowhere/redis.sock"


@pytest.fixture
def ada() -> User:
    return User.objects.create_user("ada", "ada@example.com", PASSWORD, is_staff=True)


@pytest.fixture(params=["redis", "no redis"])
def store(request: pytest.FixtureRequest, redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where attempts are counted: in Redis, or in the process if Redis doesn't answer."""
    monkeypatch.setattr(throttle, "local_counters", LocalCounters())
    if request.param == "no redis":
        settings.REDIS_URL = NO_REDIS
    return str(request.param)


def attempt(password: str, *, client: Client | None = None, address: str = "192.0.2.1", name: str = "ada") -> Any:
    data = {"username": name, "password": password}
    return (client or Client()).post(LOGIN, data, REMOTE_ADDR=address)


def test_wrong_passwords_from_one_address_are_bounded(ada: User, store: str) -> None:
    for _ in range(login.FROM_AN_ADDRESS):
        assert attempt("wrong").status_code == 200
    refused = attempt("wrong")
    assert refused.status_code == 429
    assert "Too many wrong passwords" in refused.content.decode()
    assert attempt(PASSWORD).status_code == 429, "the right password is refused as well, or guessing could go on"
    assert attempt(PASSWORD, address="192.0.2.2").status_code == 302, "others are not locked out"
    assert attempt("wrong", name="bob").status_code == 200, "another name has a count of its own"


def test_wrong_passwords_from_many_addresses_are_bounded(ada: User, store: str) -> None:
    for number in range(login.FROM_ANYWHERE):
        assert attempt("wrong", address=f"198.51.100.{number}").status_code == 200
    assert attempt("wrong", address="203.0.113.1").status_code == 429


def test_what_one_address_is_refused_locks_nobody_out_elsewhere(ada: User, store: str) -> None:
    """Fifty attempts from one address were fifty from anywhere, although the password of five was looked at."""
    for _ in range(login.FROM_ANYWHERE):
        attempt("wrong")
    assert attempt(PASSWORD, address="192.0.2.2").status_code == 302


def test_a_password_tried_with_many_names_from_one_address_is_bounded(
    ada: User, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "FOR_ALL_NAMES", 12)
    for number in range(login.FOR_ALL_NAMES - 1):
        assert attempt("Summer2026", name=f"user{number}").status_code == 200
    assert attempt(PASSWORD).status_code == 302, "and signing in leaves the count as it is"
    assert attempt("Summer2026", name="another").status_code == 429
    assert attempt(PASSWORD, address="192.0.2.2").status_code == 302


def test_a_browser_that_signed_in_before_is_not_locked_out(ada: User, store: str) -> None:
    known = Client()
    assert attempt(PASSWORD, client=known).status_code == 302
    known.cookies.pop("pushhub_session")
    for _ in range(login.FROM_AN_ADDRESS + 1):
        last = attempt("wrong")
    assert last.status_code == 429
    assert attempt(PASSWORD, client=known).status_code == 302

    known.cookies.pop("pushhub_session")
    for _ in range(login.FROM_A_KNOWN_BROWSER):
        assert attempt("wrong", client=known).status_code == 200
    assert attempt(PASSWORD, client=known).status_code == 429, "a stolen cookie allows no more guesses"


def test_the_cookie_of_a_browser_is_valid_for_its_own_name_only(ada: User, store: str) -> None:
    User.objects.create_user("bob", "bob@example.com", PASSWORD, is_staff=True)
    bobs = Client()
    assert attempt(PASSWORD, client=bobs, name="bob").status_code == 302
    bobs.cookies.pop("pushhub_session")
    for client in (bobs, None):
        for _ in range(login.FROM_AN_ADDRESS):
            attempt("wrong", client=client)
    assert attempt("wrong", client=bobs).status_code == 429
    bobs.cookies[login.COOKIE] = "made:up"
    assert attempt("wrong", client=bobs).status_code == 429


def test_signing_in_resets_the_count_of_wrong_passwords(ada: User, store: str) -> None:
    for _ in range(3):
        for _ in range(login.FROM_AN_ADDRESS - 1):
            assert attempt("wrong").status_code == 200
        assert attempt(PASSWORD).status_code == 302


def test_a_network_of_ipv6_counts_as_one_address(ada: User, store: str) -> None:
    for number in range(login.FROM_AN_ADDRESS):
        attempt("wrong", address=f"2001:db8:1:2::{number}")
    assert attempt("wrong", address="2001:db8:1:2:ffff::1").status_code == 429
    assert attempt(PASSWORD, address="2001:db8:1:3::1").status_code == 302


def test_a_window_ends_however_often_it_is_asked_meanwhile() -> None:
    clock = Clock()
    counters = LocalCounters(clock)
    for _ in range(9):
        clock.now += WINDOW_SECONDS / 10
        count, left = counters.add(7)
    assert (count, round(left)) == (9, WINDOW_SECONDS - 8 * WINDOW_SECONDS // 10)
    clock.now += left
    assert counters.add(7) == (1, WINDOW_SECONDS)


def test_the_counters_in_redis_end_by_themselves(redis_url: str) -> None:
    counts = [throttle.add_in_redis(throttle.bucket_of(name)) for name in ("a", "b", "b")]
    assert counts == [(1, WINDOW_SECONDS), (1, WINDOW_SECONDS), (2, WINDOW_SECONDS)]
    throttle.attempt_succeeded(["b"])
    assert throttle.add_in_redis(throttle.bucket_of("b"))[0] == 1
    with redis.Redis.from_url(redis_url) as client:
        assert all(0 < client.ttl(key) <= WINDOW_SECONDS for key in client.keys("pushhub:attempts:*"))


def test_there_are_never_more_counters_than_buckets(settings: Any) -> None:
    seen = {throttle.bucket_of(f"name {number}") for number in range(3000)}
    assert all(0 <= bucket < BUCKETS for bucket in seen)
    assert len(seen) > 2800, "names rarely meet"
    before, settings.SECRET_KEY = throttle.bucket_of("a"), "t"
    assert throttle.bucket_of("a") != before, "nobody can choose the bucket of another name"
