"""Plans are made from settings that may change meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jwt
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deliveries.push.sending import plans
from deliveries.push.sending.httpclient import push_client
from deliveries.push.sending.plans import PlanBook
from subscriptions.identity import tokens
from subscriptions.models import ServiceAccount, Subscription
from subscriptions.selectors import PushSettings
from tests.restapi import Api

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

OLD, NEW = "https://old.example/push", "https://new.example/push"


@pytest.fixture
def book() -> Iterator[PlanBook]:
    loop = asyncio.new_event_loop()
    client = push_client(loop)
    yield PlanBook(client)
    loop.run_until_complete(client.close())
    loop.close()


@pytest.fixture
def subscription(api: Api) -> Subscription:
    for name in ("push", "other"):
        api.create(f"topics/{name}")
        body = {"topic": f"projects/shop/topics/{name}", "pushConfig": {"pushEndpoint": OLD}}
        api.create(f"subscriptions/{name}", body)
    return Subscription.objects.get(subscription_id="push")


def endpoint(book: PlanBook, subscription: Subscription) -> str | None:
    plan = book.get(subscription.pk, now=time.monotonic())
    return plan.settings.endpoint if plan is not None and plan.settings is not None else None


@pytest.mark.parametrize("forget", [lambda book, pk: book.forget([pk]), lambda book, pk: book.forget_all()])
def test_a_plan_that_is_made_while_the_settings_change_is_not_kept(
    book: PlanBook,
    subscription: Subscription,
    forget: Callable[[PlanBook, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = plans.push_settings

    def read_then_change(ids: Iterable[int]) -> dict[int, PushSettings]:
        settings = read(ids)
        monkeypatch.undo()
        Subscription.objects.filter(pk=subscription.pk).update(push_endpoint=NEW)
        forget(book, subscription.pk)
        return settings

    monkeypatch.setattr(plans, "push_settings", read_then_change)
    book.load([subscription.pk])
    assert endpoint(book, subscription) is None
    book.load([subscription.pk])
    assert endpoint(book, subscription) == NEW


def test_a_change_of_one_subscription_leaves_the_plans_of_others(book: PlanBook, subscription: Subscription) -> None:
    other = Subscription.objects.get(subscription_id="other")
    book.load([subscription.pk, other.pk])
    book.forget([subscription.pk])
    assert (endpoint(book, subscription), endpoint(book, other)) == (None, OLD)


def test_a_deleted_subscription_keeps_its_last_name(book: PlanBook, subscription: Subscription) -> None:
    assert book.name_of(subscription.pk) == f"(subscription {subscription.pk})"
    book.load([subscription.pk])
    Subscription.objects.filter(pk=subscription.pk).delete()
    book.forget([subscription.pk])
    book.load([subscription.pk])
    assert book.name_of(subscription.pk) == "projects/shop/subscriptions/push"


def test_a_plan_ends_soon_once_until_it_is_made_anew(book: PlanBook, subscription: Subscription) -> None:
    book.load([subscription.pk])
    plan = book.get(subscription.pk, now=time.monotonic())
    assert plan is not None
    soon = plan.valid_until - plans.RENEWED_SECONDS
    assert [book.is_ending(subscription.pk, plan, now=now) for now in (soon - 1, soon, soon)] == [False, True, False]
    book.load([subscription.pk])
    assert book.is_ending(subscription.pk, plan, now=soon)


@pytest.fixture
def signed(api: Api) -> list[int]:
    """Return the ids of twenty subscriptions that push as one account."""
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    api.create("topics/orders")
    token = {"serviceAccountEmail": "pusher@shop.iam.gserviceaccount.com"}
    for number in range(20):
        push = {"pushEndpoint": OLD, "oidcToken": token}
        api.create(f"subscriptions/signed-{number}", {"topic": "projects/shop/topics/orders", "pushConfig": push})
    return list(Subscription.objects.values_list("pk", flat=True))


def test_plans_of_one_account_are_renewed_by_one_look_at_the_account(book: PlanBook, signed: list[int]) -> None:
    now = time.time()
    book._monotonic = book._time = lambda: now
    book.load(signed)
    now += plans.RIGHT_SECONDS
    assert [book.get(pk, now=now) for pk in signed] == [None] * 20

    with CaptureQueriesContext(connection) as queries:
        for pk in signed:
            book.load([pk])

    [looked] = [query["sql"] for query in queries]
    assert "serviceaccount" in looked
    assert None not in [book.get(pk, now=now) for pk in signed]


def test_a_revoked_right_ends_the_plans_of_all_subscriptions_of_the_account(book: PlanBook, signed: list[int]) -> None:
    """Within the time for which rights are kept. A right that is granted again counts as soon."""
    now = time.time()
    book._monotonic = book._time = lambda: now
    book.load(signed)
    ServiceAccount.objects.update(disabled=True)
    assert book.get(signed[0], now=now + plans.RIGHT_SECONDS) is None
    now += plans.RIGHT_SECONDS - plans.RENEWED_SECONDS
    book.load(signed[:1])
    refused = book.get(signed[0], now=now)
    assert refused is not None
    assert (refused.refusal, refused.functions) == ("token_denied", ())
    assert [book.get(pk, now=now) for pk in signed[1:]] == [None] * 19

    ServiceAccount.objects.update(disabled=False)
    now += plans.RIGHT_SECONDS
    assert book.get(signed[0], now=now) is None
    book.load(signed)
    assert {plan.refusal for pk in signed if (plan := book.get(pk, now=now))} == {""}


def test_an_account_made_anew_pushes_with_no_token_of_the_one_that_was_deleted(
    book: PlanBook, signed: list[int], api: Api
) -> None:
    now = time.time()
    book._monotonic = book._time = lambda: now
    book.load(signed[:1])
    before = ServiceAccount.objects.get()
    assert claims(book, signed[0], now=now)["sub"] == before.unique_id

    assert api.delete(f"serviceAccounts/{before.email}").status == 200
    assert api.post("serviceAccounts", {"accountId": "pusher"}).status == 200
    again = ServiceAccount.objects.get(email=before.email)
    now += plans.PLAN_SECONDS
    book.load(signed[:1])

    assert again.unique_id != before.unique_id
    assert claims(book, signed[0], now=now)["sub"] == again.unique_id


@pytest.mark.parametrize("step", [3600, -3600], ids=["asleep", "set-back"])
def test_after_a_step_of_the_clock_all_plans_have_tokens_of_the_new_time(
    book: PlanBook, signed: list[int], monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    now = shown = time.time()
    book._monotonic, book._time = lambda: now, lambda: shown
    monkeypatch.setattr(tokens.time, "time", lambda: shown)
    book.load(signed)
    now, shown = now + plans.RIGHT_SECONDS, shown + plans.RIGHT_SECONDS + step
    book.load(signed[:1])
    assert [book.get(pk, now=now) for pk in signed[1:]] == [None] * 19, "they have the old token"
    book.load(signed)
    assert {claims(book, pk, now=now)["iat"] for pk in signed} == {int(shown) - tokens.BACKDATE_SECONDS}


def claims(book: PlanBook, subscription_id: int, *, now: float) -> dict[str, Any]:
    """Return what the token says that a subscription pushes with."""
    plan = book.get(subscription_id, now=now)
    assert plan is not None
    assert plan.endpoint is not None
    headers = plan.endpoint.headers.decode()  # type: ignore[attr-defined]
    token = headers.partition("Bearer ")[2].partition("\r")[0]
    said: dict[str, Any] = jwt.decode(token, options={"verify_signature": False})
    return said


def test_settings_are_read_again_however_often_rights_are_renewed(book: PlanBook, signed: list[int]) -> None:
    """The notice of a change may have got lost."""
    began = now = time.time()
    book._monotonic = book._time = lambda: now
    book.load(signed)
    Subscription.objects.update(push_endpoint=NEW)
    while now < began + plans.PLAN_SECONDS:
        now += plans.RIGHT_SECONDS
        book.load(signed)
    assert {plan.settings.endpoint for pk in signed if (plan := book.get(pk, now=now)) and plan.settings} == {NEW}
