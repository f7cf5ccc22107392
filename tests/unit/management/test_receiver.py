from __future__ import annotations

import requests

from tests.receiver import Answer, Receiver


def test_the_receiver_records_requests_and_answers_by_script(receiver: Receiver) -> None:
    receiver.script([503, lambda request: Answer(status=200, body=request.body)])
    with requests.Session() as session:
        statuses = [session.post(receiver.url, data=b'{"a": 1}', timeout=5) for _ in range(3)]
    assert [answer.status_code for answer in statuses] == [503, 200, 204]
    assert statuses[1].content == b'{"a": 1}'
    assert [request.json for request in receiver.requests] == [{"a": 1}] * 3
    assert {request.connection for request in receiver.requests} == {1}


def test_the_redis_of_the_tests_is_real_and_empty(redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_the_redis_of_the_tests_is_empty_again(redis_url: str) -> None:
    test_the_redis_of_the_tests_is_real_and_empty(redis_url)
