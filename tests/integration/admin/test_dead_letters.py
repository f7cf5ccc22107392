"""The console's pages of dead letters: what they show, what they do, and who may use them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.deadletters import jobs
from deliveries.models import DeadLetter, DeadLetterJob, Delivery, Message
from pushhub.common.clock import time_text, utcnow
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription, Topic
from tests.integration.deadletters.letters import create_letters, create_source, owed_to
from tests.restapi import Api, root_client, staff_client

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

LIST = "/admin/deliveries/deadletter/"


def page_of(source: Subscription) -> str:
    return f"{LIST}of/{source.pk}/"


def act(client: Client, source: Subscription, **sent: Any) -> Any:
    return client.post(f"{LIST}act/{source.pk}/", sent, follow=True)


def messages_of(page: Any) -> list[str]:
    return [str(message) for message in page.context["messages"]]


def test_the_list_shows_number_age_reasons_and_attempts_of_each_subscription(api: Api, client: Client) -> None:
    source = create_source(api)
    create_letters(api, source, 2)
    create_letters(api, source, 1, result="connect_failed")
    [row] = client.get(LIST).context["rows"]
    assert (row["name"], row["count"], row["attempts"]) == ("shop / worker", 3, 5)
    assert row["reasons"] == [("the endpoint answered 503", 2), ("connect_failed (no connection was accepted)", 1)]
    assert row["is_received"]
    Subscription.objects.filter(subscription_id="reader").delete()
    page = client.get(LIST).content.decode()
    assert "It has no subscription: PushHub keeps the dead letters." in page


def test_the_page_of_a_dead_letter_shows_its_content_and_links_its_message(api: Api, client: Client) -> None:
    source = create_source(api)
    [letter] = create_letters(api, source, 1, attributes={"lang": "en"}, orderingKey="k")
    page = client.get(f"{LIST}{letter}/change/")
    assert page.context["content"]["text"] == "0"
    assert page.context["content"]["attributes"]["lang"] == "en"
    original = DeadLetter.objects.get().source_id
    assert f"/admin/deliveries/message/way/{original}/" in page.content.decode()
    act(client, source, do="redrive", letter=[letter])
    assert client.get(f"{LIST}{letter}/change/").status_code == 404


def test_a_dead_letter_and_its_page_outlive_the_dead_letter_topic(api: Api, client: Client) -> None:
    """Its subscription keeps the dead letter, which can be redriven."""
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    api.delete("topics/letters")
    assert f"{LIST}{letter}/change/" in client.get(page_of(source)).content.decode()
    page = client.get(f"{LIST}{letter}/change/")
    assert page.context["content"]["text"] == "0"
    assert (page.context["topic"], page.context["may_redrive"]) == ("_deleted-topic_", True)


def test_a_message_of_a_deleted_topic_is_listed_and_shown_while_it_waits(api: Api, client: Client) -> None:
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    api.delete("topics/letters")
    way = f"/admin/deliveries/message/way/{letter}/"
    assert way in client.get("/admin/deliveries/message/").content.decode()
    page = client.get(way)
    assert page.context["original"]["text"] == "0"
    assert (page.context["topic"], page.context["may_publish"]) == ("_deleted-topic_", False)
    assert [shown["state"] for shown in page.context["ways"]] == ["waiting"]
    assert client.post(f"/admin/deliveries/message/replay/{letter}/").status_code == 403


def test_chosen_dead_letters_are_redriven_at_once_and_discarded_after_a_confirmation(api: Api, client: Client) -> None:
    source = create_source(api)
    first, second, third = create_letters(api, source, 3)
    assert messages_of(act(client, source, do="redrive")) == ["Choose at least one dead letter."]
    assert messages_of(act(client, source, do="redrive", letter=[first])) == ["Redrove 1 dead letter."]
    question = act(client, source, do="discard", letter=[second, third])
    assert "Discarding the chosen dead letters (2) deletes them for good." in question.content.decode()
    assert DeadLetter.objects.count() == 2
    sent = dict(question.context["sent"])
    assert sent["do"] == "discard"
    assert messages_of(act(client, source, do="discard", letter=[second, third], confirmed="yes")) == [
        "Discarded 2 dead letters."
    ]
    assert (owed_to("worker"), owed_to("reader")) == (["0"], [])


def first_tick() -> None:
    """Advance the one order at the time of its begin, however long the test took to get here."""
    jobs.advance_jobs(clock=lambda: DeadLetterJob.objects.get().created_at)


def test_an_order_that_nobody_carries_out_says_so(api: Api, client: Client) -> None:
    source = create_source(api)
    create_letters(api, source, 1)
    act(client, source, do="redrive-all", rate="1")
    begun = utcnow() - timedelta(minutes=2)
    DeadLetterJob.objects.update(created_at=begun)
    live = client.get(f"{LIST}job/{source.pk}/").json()
    assert live["level"] == "warn"
    assert live["sentence"].endswith(f"not gone on since {time_text(begun)}: is a maintenance worker running?")


def test_all_dead_letters_are_moved_by_a_job_whose_progress_is_shown(api: Api, client: Client) -> None:
    source = create_source(api)
    create_letters(api, source, 3)
    assert messages_of(act(client, source, do="redrive-all", rate="0")) == [
        "The rate must be between 1 and 1000 messages a second."
    ]
    page = act(client, source, do="redrive-all", rate="1")
    assert messages_of(page) == ["3 dead letters will be redriven, at most 1 a second."]
    assert page.context["job"]["text"] == "Redriving: 0 of 3, at most 1 a second."
    assert f'data-live-source="{LIST}job/{source.pk}/"' in page.content.decode()
    first_tick()
    live = client.get(f"{LIST}job/{source.pk}/").json()
    assert live == {"sentence": "Redriving: 1 of 3, at most 1 a second.", "level": ""}
    page = client.get(page_of(source))
    assert page.context["job"]["text"] == "Redriving: 1 of 3, at most 1 a second."
    assert messages_of(client.post(f"{LIST}stop/{source.pk}/", follow=True)) == [
        "Stopped. The dead letters that are left stay here."
    ]
    assert client.get(page_of(source)).context["job"]["text"] == "Stopped after 1 of 3."
    question = act(client, source, do="discard-all", rate="1000")
    assert "Discarding all dead letters (2)" in question.content.decode()
    act(client, source, do="discard-all", rate="1000", confirmed="yes")
    jobs.advance_jobs()
    jobs.advance_jobs()
    page = client.get(page_of(source))
    assert page.context["job"]["text"] == "Discarded 2 dead letters."
    assert owed_to("worker") == ["0"]


def test_chosen_dead_letters_are_moved_at_the_rate_of_the_form(api: Api, client: Client) -> None:
    source = create_source(api)
    first, second, third = create_letters(api, source, 3)
    for rate in ("0", "1001", "ten", ""):
        for verb in ("redrive", "discard", "redrive-all"):
            assert messages_of(act(client, source, do=verb, letter=[first], rate=rate)) == [
                "The rate must be between 1 and 1000 messages a second."
            ]
    assert not DeadLetterJob.objects.exists()
    assert 'name="rate"' in client.get(page_of(source)).content.decode()
    page = act(client, source, do="redrive", letter=[first, third], rate="1")
    assert messages_of(page) == ["2 dead letters will be redriven, at most 1 a second."]
    assert page.context["job"]["text"] == "Redriving: 0 of 2, at most 1 a second."
    first_tick()
    assert client.get(f"{LIST}job/{source.pk}/").json()["sentence"] == "Redriving: 1 of 2, at most 1 a second."
    client.post(f"{LIST}stop/{source.pk}/")
    question = act(client, source, do="discard", letter=[second], rate="7")
    assert dict(question.context["sent"])["rate"] == "7"
    assert messages_of(act(client, source, do="discard", letter=[second], rate="7", confirmed="yes")) == [
        "1 dead letter will be discarded, at most 7 a second."
    ]
    jobs.advance_jobs()
    assert list(DeadLetter.objects.values_list("message_id", flat=True)) == [third]
    assert owed_to("worker") == ["0"]


def person(name: str, role: str, resource: Any) -> Client:
    grants.grant_role(resource, role=role, member=f"user:{name}@example.com")
    return staff_client(name)


def test_a_viewer_sees_no_button_and_no_content(api: Api) -> None:
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    viewer = person("vera", "roles/pubsub.viewer", Project.objects.get())
    page = viewer.get(page_of(source)).content.decode()
    assert str(letter) in page
    assert "<button" not in page.partition('id="content-main"')[2].partition("<footer")[0]
    assert f"{LIST}{letter}/change/" not in page
    assert viewer.get(f"{LIST}{letter}/change/").status_code == 403
    for verb in ("redrive", "discard", "redrive-all", "discard-all"):
        assert act(viewer, source, do=verb, letter=[letter], rate="5", confirmed="yes").status_code == 403
    assert DeadLetter.objects.count() == 1
    assert not DeadLetterJob.objects.exists()
    editor = person("eddy", "roles/pubsub.editor", Project.objects.get())
    assert messages_of(act(editor, source, do="redrive", letter=[letter])) == ["Redrove 1 dead letter."]


def test_dead_letters_of_another_subscription_are_not_moved_by_their_ids(api: Api) -> None:
    """The address names a subscription that the caller may edit; the dead letter belongs to another subscription."""
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    api.create("subscriptions/own", {"topic": source.topic.name})  # type: ignore[union-attr]
    own = Subscription.objects.select_related("project").get(subscription_id="own")
    editor = person("eddy", "roles/pubsub.editor", own)
    assert act(editor, own, do="discard", letter=[letter], confirmed="yes").status_code == 200
    assert act(editor, own, do="redrive", letter=[letter]).status_code == 200
    assert DeadLetter.objects.filter(pk=letter).exists()
    assert owed_to("own") == []


def test_a_forged_request_and_a_get_change_nothing(api: Api) -> None:
    source = create_source(api)
    [letter] = create_letters(api, source, 1)
    strict = root_client(enforce_csrf_checks=True)
    sent = {"do": "discard", "letter": [letter], "confirmed": "yes"}
    assert strict.post(f"{LIST}act/{source.pk}/", sent).status_code == 403
    assert strict.get(f"{LIST}act/{source.pk}/", sent).status_code == 405
    assert strict.get(f"{LIST}stop/{source.pk}/").status_code == 405
    assert DeadLetter.objects.count() == 1


def test_the_number_of_queries_does_not_grow_with_the_rows(api: Api, client: Client) -> None:
    source = create_source(api)
    pages = (LIST, page_of(source))
    create_letters(api, source, 1)
    query_counts = [queries(client, page) for page in pages]
    insert_dead_letters(source, subscriptions=60, letters=40)
    assert [queries(client, page) for page in pages] == query_counts
    assert len(client.get(LIST).context["rows"]) == 50
    assert len(client.get(f"{LIST}?page=1").context["rows"]) == 11


def queries(client: Client, page: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(page).status_code == 200
    return len(captured)


def insert_dead_letters(source: Subscription, *, subscriptions: int, letters: int) -> None:
    """Insert subscriptions with dead letters, and more dead letters of the source."""
    topic = Topic.objects.get(topic_id="letters")
    rows = Subscription.objects.bulk_create(
        Subscription(project=source.project, subscription_id=f"many{number}", topic=topic)
        for number in range(subscriptions)
    )
    owners = [source, *rows]
    reader = Subscription.objects.get(subscription_id="reader")
    total = len(owners) * letters
    messages = Message.objects.bulk_create(
        Message(id=1000 + number, topic=topic, region="local") for number in range(total)
    )
    Delivery.objects.bulk_create(Delivery(message=row, subscription=reader, region="local") for row in messages)
    DeadLetter.objects.bulk_create(
        DeadLetter(message=row, subscription=owners[number % len(owners)], source_id=1, attempts=5, result="503")
        for number, row in enumerate(messages)
    )
