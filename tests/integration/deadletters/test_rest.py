"""Dead letters over REST."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries import tasks
from deliveries.deadletters import jobs
from deliveries.models import DeadLetter, DeadLetterJob
from tests.integration.deadletters.letters import create_letters, create_source, owed_to
from tests.restapi import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

WORKER = "subscriptions/worker"


def test_dead_letters_are_listed_in_pages(api: Api) -> None:
    source = create_source(api)
    letters = create_letters(api, source, 3)
    first = api.get(f"{WORKER}/deadLetters?pageSize=2").body
    second = api.get(f"{WORKER}/deadLetters?pageSize=2&pageToken={first['nextPageToken']}").body
    listed = [letter["messageId"] for page in (first, second) for letter in page["deadLetters"]]
    assert listed == [str(message_id) for message_id in letters]
    assert "nextPageToken" not in second
    row = DeadLetter.objects.get(pk=letters[0])
    assert first["deadLetters"][0]["sourceMessageId"] == str(row.source_id)
    assert (first["deadLetters"][0]["deliveryAttempts"], first["deadLetters"][0]["reason"]) == (5, "503")


def test_dead_letters_are_redriven_and_discarded_by_id_or_all_at_a_rate(api: Api) -> None:
    source = create_source(api)
    first, second, *_ = create_letters(api, source, 4)
    assert api.post(f"{WORKER}:redriveDeadLetters", {"messageIds": [str(first)]}).body == {"messages": 1}
    assert api.post(f"{WORKER}:discardDeadLetters", {"messageIds": [str(second), "7"]}).body == {"messages": 1}
    assert api.post(f"{WORKER}:redriveDeadLetters", {"all": True, "messagesPerSecond": 5}).body == {"messages": 2}
    jobs.advance_jobs()
    assert sorted(owed_to("worker")) == ["0", "2", "3"]
    assert api.get(f"{WORKER}/deadLetters").body == {}


@pytest.mark.parametrize("method", ["redriveDeadLetters", "discardDeadLetters", "deadLetterMessages", "skipMessages"])
def test_a_field_that_a_method_does_not_have_is_refused_and_nothing_is_moved(api: Api, method: str) -> None:
    [letter] = create_letters(api, create_source(api), 1)
    answer = api.post(f"{WORKER}:{method}", {"messageIds": [str(letter)], "dryRun": True})
    assert (answer.error["status"], answer.fields) == ("INVALID_ARGUMENT", ["dryRun"])
    assert 'Unknown name "dryRun"' in answer.error["message"]
    assert len(api.get(f"{WORKER}/deadLetters").body["deadLetters"]) == 1


def test_the_timed_task_sends_one_for_each_shard_that_has_orders(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(tasks.advance_dead_letters, "apply_async", lambda args, **_: sent.extend(args))
    source = create_source(api)
    create_letters(api, source, 1)
    assert tasks.advance_dead_letters() == 0
    api.post(f"{WORKER}:redriveDeadLetters", {"all": True, "messagesPerSecond": 1})
    assert tasks.advance_dead_letters() == 1
    assert owed_to("worker") == []
    [shard] = sent
    assert tasks.advance_dead_letters(shard) == 1
    assert owed_to("worker") == ["0"]


def test_dead_letters_chosen_by_id_are_moved_at_the_requested_rate(api: Api) -> None:
    source = create_source(api)
    first, second, third = create_letters(api, source, 3)
    body = {"messageIds": [str(first), str(third)], "messagesPerSecond": 1}
    assert api.post(f"{WORKER}:redriveDeadLetters", body).body == {"messages": 2}
    assert owed_to("worker") == []
    jobs.advance_jobs()
    assert owed_to("worker") == ["0"]
    answer = api.post(f"{WORKER}:discardDeadLetters", {"messageIds": [str(second)], "messagesPerSecond": 1})
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert DeadLetter.objects.count() == 2


@pytest.mark.any_database
@pytest.mark.parametrize(
    "body, field",
    [
        ({}, "messageIds"),
        ({"messageIds": ["1"], "all": True}, "messageIds"),
        ({"messageIds": "1"}, "messageIds"),
        ({"messageIds": ["x"]}, "messageIds"),
        ({"messageIds": ["1"] * 101}, "messageIds"),
        ({"messageIds": ["9" * 40]}, "messageIds"),
        ({"all": "yes"}, "all"),
        ({"all": True, "messagesPerSecond": "10"}, "messagesPerSecond"),
        ({"all": True, "messagesPerSecond": True}, "messagesPerSecond"),
        ({"all": True, "messagesPerSecond": 0}, "messagesPerSecond"),
        ({"all": True, "messagesPerSecond": None}, "messagesPerSecond"),
        ({"messageIds": ["1"], "messagesPerSecond": "10"}, "messagesPerSecond"),
        ({"messageIds": ["1"], "messagesPerSecond": 1001}, "messagesPerSecond"),
    ],
)
def test_bad_requests_name_their_field_and_change_nothing(api: Api, body: dict[str, Any], field: str) -> None:
    source = create_source(api)
    create_letters(api, source, 1)
    answer = api.post(f"{WORKER}:discardDeadLetters", body)
    assert (answer.status, answer.fields) == (400, [field])
    assert DeadLetter.objects.count() == 1
    assert not DeadLetterJob.objects.exists()
