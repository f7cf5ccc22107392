"""The query parameters and headers that every method takes, and compressed answers."""

from __future__ import annotations

import gzip
import logging
from typing import Any

import orjson
import pytest

from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from tests.restapi import Api

pytestmark = pytest.mark.any_database

ADA = "user:ada@example.com"
OVERRIDE = "X-HTTP-Method-Override"


@pytest.fixture
def token(api: Api, settings: Any) -> str:
    """Return an access token of Ada, who may view the project `shop`. Anonymous callers are refused."""
    api.create("topics/orders", {"labels": {"team": "shop"}})
    grants.grant_role(get_resource("projects/shop"), role="roles/pubsub.viewer", member=ADA)
    settings.ANONYMOUS = ""
    return access_tokens.create_access_token(member=ADA).token


def test_answers_are_partial_and_pretty_on_demand(api: Api) -> None:
    api.create("topics/orders", {"labels": {"team": "shop"}})
    assert api.get("topics/orders?fields=labels/team").body == {"labels": {"team": "shop"}}
    assert api.get("topics?fields=topics(name)&alt=json").body == {"topics": [{"name": "projects/shop/topics/orders"}]}
    assert api.get("topics/none?fields=labels").error["code"] == 404
    pretty = api.client.get(api.root + "topics/orders?prettyPrint=true").content
    assert b'{\n  "name"' in pretty
    assert b"\n" not in api.client.get(api.root + "topics/orders").content


def test_parameters_without_an_effect_are_accepted(api: Api) -> None:
    query = "key=k&quotaUser=q&uploadType=media&upload_protocol=raw&callback=c&$.xgafv=2"
    assert api.create(f"topics/orders?{query}")["name"] == "projects/shop/topics/orders"


def test_a_post_may_name_another_method_in_a_header(api: Api) -> None:
    """As Google's libraries for Java send updates over REST."""
    api.create("topics/orders")
    body = {"topic": {"labels": {"team": "shop"}}, "updateMask": "labels"}
    assert api.post("topics/orders", body).status == 404
    assert api.post("topics/orders", body, **{OVERRIDE: "PATCH"}).body["labels"] == {"team": "shop"}
    assert api.get("topics/orders", **{OVERRIDE: "DELETE"}).status == 200
    assert api.post("topics/orders", **{OVERRIDE: "DELETE"}).status == 200
    assert api.get("topics/orders").status == 404


@pytest.mark.parametrize("query", ["pagesize=1", "alt=json&x=1", "name=orders&page_size=1"])
def test_a_parameter_that_the_method_lacks_is_refused(api: Api, query: str) -> None:
    answer = api.get(f"topics?{query}")
    [field] = answer.fields
    assert (answer.status, field in query) == (400, True)
    assert f'Unknown name "{field}": Cannot bind query parameter.' in answer.error["message"]
    assert api.get("topics?page_size=1&page_token=").status == 200
    assert api.put("topics/orders?topicId=orders").status == 400
    assert api.get("topics/orders").status == 404


def test_a_bad_form_is_refused_before_anything_is_done(api: Api) -> None:
    for query, field in (("fields=a(", "fields"), ("alt=proto", "alt"), ("prettyPrint=x", "prettyPrint")):
        answer = api.put(f"topics/orders?{query}")
        assert (answer.status, answer.fields) == (400, [field])
    assert api.get("topics/orders").status == 404


@pytest.mark.parametrize("name", ["access_token", "oauth_token", "access%5Ftoken"])
def test_an_access_token_may_come_in_the_query(api: Api, token: str, name: str) -> None:
    assert api.get(f"topics/orders?{name}={token}&fields=labels").body == {"labels": {"team": "shop"}}
    assert api.get("topics/orders").status == 401
    for wrong in ("", "x", token[:-1]):
        assert api.get(f"topics/orders?{name}={wrong}").status == 401
    assert api.get(f"topics/orders?{name}={token}", Authorization="Bearer x").status == 401, "the header counts"


def test_an_access_token_may_come_in_the_query_of_later_versions(api: Api, token: str) -> None:
    grants.grant_role(get_resource("projects/shop"), role="roles/monitoring.viewer", member=ADA)
    descriptors = "/v3/projects/shop/metricDescriptors"
    assert api.get(f"{descriptors}?access_token={token}").status == 200
    assert api.get(descriptors).status == 401


def test_an_access_token_in_the_query_is_never_written_down(
    api: Api, token: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unexpected")

    queries = [f"access_token={token}", f"a=b&access_token={token}&fields=a(", f"oauth_token={token}x"]
    paths = ("topics/orders", "none", "topics/", "/v3/none")
    statuses = [api.get(f"{path}?{query}").status for path in paths for query in queries]
    monkeypatch.setattr("subscriptions.selectors.get_topic", fail)
    answer = api.get(f"topics/orders?access_token={token}")
    assert {*statuses, answer.status} >= {200, 400, 401, 404, 500}
    assert caplog.records
    assert token not in caplog.text
    assert token not in str(answer.body)


def compressed(api: Api, path: str, accepted: str) -> Any:
    return api.client.get(path, headers={"Accept-Encoding": accepted})


def test_long_responses_are_compressed_for_clients_that_accept_gzip(api: Api) -> None:
    for number in range(30):
        api.create(f"topics/topic-{number}")
    plain = compressed(api, api.root + "topics", "")
    for accepted in ("gzip", "deflate, GZIP;q=0.5", "x-gzip"):
        answer = compressed(api, api.root + "topics", accepted)
        assert answer["Content-Encoding"] == "gzip" and "Accept-Encoding" in answer["Vary"]
        assert int(answer["Content-Length"]) == len(answer.content) < len(plain.content) / 3
        assert orjson.loads(gzip.decompress(answer.content)) == orjson.loads(plain.content)
    for accepted in ("", "br", "gzip;q=0", "gzip; q=0.000"):
        assert "Content-Encoding" not in compressed(api, api.root + "topics", accepted)
    assert "Content-Encoding" not in compressed(api, api.root + "topics/topic-1", "gzip"), "it is short"


def test_answers_to_a_browsers_session_are_not_compressed(api: Api) -> None:
    """The length of a compressed answer would tell another site's page what it contains."""
    for number in range(30):
        api.create(f"topics/topic-{number}")
    api.sign_in("root@example.com", is_superuser=True)
    for path in (api.root + "topics", "/admin/"):
        answer = compressed(api, path, "gzip")
        assert answer.status_code == 200 and "Content-Encoding" not in answer
