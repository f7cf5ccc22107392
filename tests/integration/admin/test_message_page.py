"""A message's page shows its way through each subscription, while it waits and after the ack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin
from django.test import Client

from deliveries.admin.readonly import UncountedPaginator
from deliveries.models import Delivery, Message
from deliveries.telemetry.journal import journal as journals
from deliveries.telemetry.journal.sealing import seal_closed
from pushhub.common import replica
from subscriptions.cli import main as cli
from subscriptions.iam import grants
from subscriptions.models import Subscription
from tests.ports import wait_for
from tests.receiver import Answer, Receiver
from tests.restapi import Api, root_client, staff_client
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"


@pytest.fixture
def folder(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The journal's folder, to which this process and the workers that it starts write."""
    settings.JOURNAL = str(tmp_path / "segments")
    monkeypatch.setenv("PUSHHUB_JOURNAL", settings.JOURNAL)
    yield Path(settings.JOURNAL)
    journal = journals.journal()
    assert journal is not None
    journal.close()
    journals._journal_of.cache_clear()


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    return api


def publish(api: Api, **fields: Any) -> int:
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8=", **fields}]}).body["messageIds"]
    return int(message_id)


def ways(client: Client, message_id: int) -> dict[str, dict[str, Any]]:
    page = client.get(f"/admin/deliveries/message/way/{message_id}/")
    assert page.status_code == 200
    return {way["subscription"]: way for way in page.context["ways"]}


def test_the_way_of_a_message_is_shown_while_it_waits_and_after_the_ack(
    api: Api, client: Client, redis_url: str, receiver: Receiver, folder: Path
) -> None:
    receiver.script([Answer(503, headers={"Set-Cookie": "sid=1"}, body=b"down")])
    kept = {"x-pushhub-keep-answers": "true"}
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url, "attributes": kept}})
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api)
    waiting = ways(client, message_id)
    assert waiting[PUSH]["state"] == "outstanding", "it holds a token from the moment it is in the queue"
    assert waiting[PUSH]["why"].startswith("Redis knows of no push worker of region local")
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.filter(subscription__subscription_id="push").exists())
    seal_closed(folder)
    settled = ways(client, message_id)
    assert settled[PUSH]["state"] == "acknowledged" and settled[PUSH]["why"] == ""
    results = [(attempt["number"], attempt["outcome"], attempt["result"]) for attempt in settled[PUSH]["attempts"]]
    assert results == [(1, "nack", "503"), (2, "ack", "204")]
    assert settled["projects/shop/subscriptions/pull"]["state"] == "waiting"
    failing, acknowledging = (attempt["answer"] for attempt in settled[PUSH]["attempts"])
    assert failing.startswith("HTTP/1.1 503 ") and failing.endswith("\n\ndown") and acknowledging == ""
    assert "Set-Cookie: [redacted]" in failing
    [delivery] = [row for row in api.get(f"messages/{message_id}").body["deliveries"] if row["subscription"] == PUSH]
    assert [row.get("answer", "") for row in delivery["attempts"]] == [failing, ""]


def test_rest_and_the_command_line_show_what_the_page_shows(
    api: Api, client: Client, redis_url: str, receiver: Receiver, folder: Path, live_server: Any, capsys: Any
) -> None:
    """Given a message that was acked at the second attempt, then REST and `messages describe` show its way."""
    receiver.script([503])
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api, attributes={"colour": "red"})
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.filter(subscription__subscription_id="push").exists())
    seal_closed(folder)
    answer = api.get(f"messages/{message_id}").body
    page = ways(client, message_id)
    deliveries = {delivery["subscription"]: delivery for delivery in answer["deliveries"]}
    assert deliveries.keys() == page.keys()
    assert deliveries[PUSH]["state"] == "ACKED"
    shown = [(row["deliveryAttempt"], row["outcome"], row["result"]) for row in deliveries[PUSH]["attempts"]]
    assert shown == [(1, "nack", "503"), (2, "ack", "204")]
    assert not any("answer" in row for row in deliveries[PUSH]["attempts"]), "nobody asked for it"
    assert all(row["latency"].endswith("s") for row in deliveries[PUSH]["attempts"])
    pull = deliveries["projects/shop/subscriptions/pull"]
    assert (pull["state"], pull["reason"]) == ("WAITING", page["projects/shop/subscriptions/pull"]["why"])
    assert (answer["topic"], answer["data"], answer["attributes"]) == (TOPIC, "aGVsbG8=", {"colour": "red"})
    options = ["--project", "shop", "--url", live_server.url]
    assert cli.main(["messages", "describe", str(message_id), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"to {TOPIC}")
    assert f"{PUSH}: acked." in lines
    assert [line.split()[1:5] for line in lines if "push" in line.split()] == [
        ["push", "1", "nack", "503"],
        ["push", "2", "ack", "204"],
    ]


@pytest.mark.parametrize(
    ("message_id", "status"), [("12", 404), ("x", 400), ("9223372036854775808", 400), ("1" * 40, 400)]
)
def test_an_unknown_or_malformed_message_id_is_refused(api: Api, folder: Path, message_id: str, status: int) -> None:
    assert api.get(f"messages/{message_id}").status == status


def test_a_caller_without_a_role_finds_no_message(api: Api, folder: Path) -> None:
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api)
    api.sign_in("ada@example.com")
    assert api.get(f"messages/{message_id}").status == 404
    pull = Subscription.objects.get(subscription_id="pull")
    grants.grant_role(pull, role="roles/pubsub.subscriber", member="user:ada@example.com")
    assert api.get(f"messages/{message_id}").body["deliveries"][0]["state"] == "WAITING"


def test_a_search_finds_messages_by_attribute_and_key_and_opens_a_message_by_its_id(api: Api, client: Client) -> None:
    api.create("subscriptions/pull", {"topic": TOPIC})
    red, blue = publish(api, attributes={"colour": "red"}), publish(api, orderingKey="blue")

    def search(term: str) -> set[int]:
        return {row.pk for row in client.get("/admin/deliveries/message/", {"q": term}).context["cl"].queryset}

    assert (search("colour=red"), search("colour=re"), search("blue")) == ({red}, set(), {blue})
    answer = client.get("/admin/deliveries/message/", {"q": str(red)})
    assert answer.headers["Location"] == f"/admin/deliveries/message/way/{red}/"


def test_a_message_is_published_again_under_a_new_id(api: Api, client: Client) -> None:
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api, attributes={"a": "b"}, orderingKey="k")
    client.post(f"/admin/deliveries/message/replay/{message_id}/")
    copy = Message.objects.exclude(pk=message_id).get()
    original = Message.objects.get(pk=message_id)
    assert (bytes(copy.data), copy.attributes, copy.ordering_key) == (b"hello", original.attributes, "k")
    assert Delivery.objects.filter(message=copy.pk).exists()


def test_a_reader_sees_the_way_only_to_subscriptions_that_it_may_pull(
    api: Api, client: Client, redis_url: str, receiver: Receiver, folder: Path
) -> None:
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api)
    with Worker(redis_url):
        wait_for(lambda: receiver.requests)
    seal_closed(folder)
    ada = staff_client("ada")
    assert ada.get(f"/admin/deliveries/message/way/{message_id}/").status_code == 404
    pull = Subscription.objects.get(subscription_id="pull")
    grants.grant_role(pull, role="roles/pubsub.subscriber", member="user:ada@example.com")
    assert set(ways(ada, message_id)) == {"projects/shop/subscriptions/pull"}
    assert ada.post(f"/admin/deliveries/message/replay/{message_id}/").status_code == 403


def test_a_message_that_a_replica_lacks_is_shown_from_the_primary(
    redis_url: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    api.put("topics/orders")
    api.put("subscriptions/pull", {"topic": TOPIC})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
    address = f"/admin/deliveries/message/{Message.objects.get().pk}/change/"
    # Given a replica that has not replayed the publish yet
    look = ModelAdmin.get_object
    monkeypatch.setattr(ModelAdmin, "get_object", lambda *asked: None if replica.is_replica_read() else look(*asked))
    monkeypatch.setattr(replica, "has_replica", lambda: True)
    monkeypatch.setattr(replica.watch, "state", replica.State)
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "pushhub.replicapages.ReplicaPages"]
    # Then the page doesn't say that the message may have been deleted
    assert root_client().get(address).status_code == 200


@pytest.mark.parametrize("digits", ["9" * 20, "9" * 5000])
def test_numbers_without_end_are_no_ids(api: Api, digits: str) -> None:
    """Python refuses to read more than 4,300 digits."""
    api.create("subscriptions/pull", {"topic": TOPIC})
    source, message = Subscription.objects.get(), publish(api)
    client = root_client()
    sent = {"subscription": digits, "do": "skip", "confirmed": "yes"}
    assert client.post(f"/admin/deliveries/message/settle/{message}/", sent).status_code == 404
    for address in ("delivery/search/?q=", "message/?q=", f"deadletter/of/{source.pk}/?before="):
        assert client.get(f"/admin/deliveries/{address}{digits}").status_code == 200, address
    page = client.post(f"/admin/deliveries/deadletter/act/{source.pk}/", {"do": "redrive", "letter": [digits]})
    assert page.status_code == 302


def test_the_texts_of_rest_are_in_english_whatever_language_the_caller_accepts(api: Api, folder: Path) -> None:
    api.create("subscriptions/pull", {"topic": TOPIC})
    message_id = publish(api)
    english, chinese = (
        api.get(f"messages/{message_id}", **{"Accept-Language": language}).body["deliveries"]
        for language in ("en", "zh-hans")
    )
    assert english[0]["reason"].startswith("Nobody has asked for messages for a minute.")
    assert chinese == english


def test_a_message_that_still_waits_for_others_is_not_called_gone(api: Api, folder: Path) -> None:
    # Given a message that one subscription has acknowledged, and another one has not
    api.create("subscriptions/pull", {"topic": TOPIC})
    api.create("subscriptions/other", {"topic": TOPIC})
    ada = staff_client("ada")
    pull = Subscription.objects.get(subscription_id="pull")
    grants.grant_role(pull, role="roles/pubsub.subscriber", member="user:ada@example.com")
    message_id = publish(api)
    [received] = api.post("subscriptions/pull:pull", {"maxMessages": 1}).body["receivedMessages"]
    assert api.post("subscriptions/pull:acknowledge", {"ackIds": [received["ackId"]]}).status == 200
    # Then whoever may pull from the first one still sees it, as over REST
    page = ada.get(f"/admin/deliveries/message/way/{message_id}/")
    assert page.context["original"]["text"] == "hello"
    assert not page.context["may_publish"]
    # And it is gone once nobody waits for it, while the journal tells of it
    wait_for(lambda: any(b'"outcome":"ack"' in path.read_bytes() for path in folder.glob("open/*")))
    Delivery.objects.all().delete()
    Message.objects.all().delete()
    assert "Not kept any more" in ada.get(f"/admin/deliveries/message/way/{message_id}/").content.decode()


@pytest.mark.parametrize(
    ("most", "language", "said"),
    [
        (3, "en", "3 messages"),
        (2, "en", "more than 2 messages"),
        (2, "zh-hans", "超过 2 消息"),
    ],
)
def test_a_list_says_when_there_are_more_than_it_counts(
    api: Api, monkeypatch: pytest.MonkeyPatch, most: int, language: str, said: str
) -> None:
    for _ in range(3):
        publish(api)
    monkeypatch.setattr(UncountedPaginator, "MOST", most)
    page = root_client(headers={"Accept-Language": language}).get("/admin/deliveries/message/").content.decode()
    assert said in " ".join(page.split())
