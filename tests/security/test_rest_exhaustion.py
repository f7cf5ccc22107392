"""JSON that is cheap to send and expensive to read: many small elements, deep nesting, and highly compressed bodies."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from pushhub.common.elements import MOST_ELEMENTS, has_few_elements
from tests.restapi import Api
from tests.webservers import WebServer

pytestmark = pytest.mark.any_database

EMPTY_OBJECTS = b'{"messages":[' + b"{}," * 3_400_000 + b"{}]}"


def test_a_body_of_millions_of_elements_takes_little_memory(transactional_db: None, redis_url: str) -> None:
    with WebServer(redis_url, PUSHHUB_WEB_WORKERS="1") as server:
        url = f"{server.url}/v1/projects/shop/topics/orders"
        assert requests.put(url, timeout=60).status_code == 200
        before = server.peak_mb
        compressed = gzip.compress(EMPTY_OBJECTS)

        def publish(_: int) -> int:
            headers = {"Content-Encoding": "gzip"}
            return requests.post(f"{url}:publish", data=compressed, headers=headers, timeout=60).status_code

        with ThreadPoolExecutor(4) as pool:
            assert set(pool.map(publish, range(8))) == {400}
        assert server.peak_mb - before < 150, "each took 260 MB before"


@pytest.mark.parametrize(
    "body",
    [
        EMPTY_OBJECTS,
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'""' * 1_000_000 + b"," * 200_000,
        b'["' + b'","' * MOST_ELEMENTS + b'"]',
        b'["\\\\",' + b"1," * MOST_ELEMENTS,
    ],
    ids=["objects", "lists", "nested objects", "no JSON", "strings", "an escaped backslash"],
)
def test_a_body_with_too_many_elements_is_refused(api: Api, body: bytes) -> None:
    assert not has_few_elements(body)
    api.create("topics/orders")
    answer = api.post("topics/orders:publish", body)
    assert (answer.status, answer.fields) == (400, ["body"])
    assert "elements" in answer.error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"' + b",[{" * 1_000_000 + b'"}',
        b'{"a":"' + b',\\"' * 1_000_000 + b'"}',
        b'{"a":"' + b"," * 200_000 + b'\\\\"}',
        b'{"a":"' + b"," * 200_000,
        b"[" + b'"a",' * (MOST_ELEMENTS - 2) + b'"a"]',
        b'{"messages":[' + b",".join([b'{"data":"' + b"QUFB" * 2400 + b'"}'] * 1000) + b"]}",
    ],
    ids=["separators in a string", "escaped quotes", "a backslash at the end", "no end", "a long list", "messages"],
)
def test_a_body_that_only_looks_like_many_elements_is_accepted(body: bytes) -> None:
    assert has_few_elements(body)


def test_a_body_that_nests_too_deeply_is_refused(api: Api) -> None:
    api.create("topics/orders")
    answer = api.post("topics/orders:publish", b'{"messages":' + b"[" * 5000 + b"]" * 5000 + b"}")
    assert (answer.status, answer.fields) == (400, ["body"])
    answer = api.post("topics/orders:publish", b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}")
    assert answer.status == 400
