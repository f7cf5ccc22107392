"""Plans are made from settings that may change meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from deliveries.push.sending import plans
from deliveries.push.sending.httpclient import push_client
from deliveries.push.sending.plans import PlanBook
from subscriptions.models import Subscription
from subscriptions.selectors import PushSettings
from tests.restapi import Api

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

OLD, NEW = "https://old.example/push", "https://new.example/push"


@pytest.fixture
def book() -> Iterator[PlanBook]:
    loop = asyncio.new_event_loop()
    client = push_client(loop)
    yield PlanBook(client)
    loop.run_until_complete(client.close(drain_s=0))
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
