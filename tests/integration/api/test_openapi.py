"""The OpenAPI document describes what the API does: schemathesis calls each operation and checks every answer.

To import schemathesis takes a second, and to make the document a third of one, so only the process that runs these
tests does either. The operations are listed by docs/api.md, which test_api_page.py compares with the document.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.docscripts import ROOT
from tests.restapi import Api

pytestmark = pytest.mark.any_database

Json = dict[str, Any]

#: Ids of resources that exist, so that some calls succeed.
IDS = {"project": "shop", "topic": "orders", "subscription": "sub", "account": "pusher@shop.iam.gserviceaccount.com"}
FEW = settings(
    max_examples=3,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def strict(schema: Any) -> Any:
    """Return the schema, in which an object has no fields but those that are documented."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {name: strict(item) for name, item in schema.items()}
    return {**result, "additionalProperties": False} if "properties" in schema else result


def strict_document() -> Json:
    """Return the OpenAPI document, in which responses have no fields but those that are documented."""
    document: Json = SchemaGenerator().get_schema(public=True)  # type: ignore[no-untyped-call]
    document["components"]["responses"] = strict(document["components"]["responses"])
    for verbs in document["paths"].values():
        for operation in verbs.values():
            operation["responses"] = strict(operation["responses"])
    return document


REQUESTS = re.findall(r"^\| `(\w+ \S+)` \|", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)


@functools.cache
def operations() -> dict[str, Any]:
    """Return every operation of the document by its method and path."""
    import schemathesis

    results = [result.ok() for result in schemathesis.openapi.from_dict(strict_document()).get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in results}


@pytest.fixture
def application(db: None) -> Iterator[WSGIHandler]:
    """Yield Django's application, which keeps the test's database connection open, as Django's test client does."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield WSGIHandler()
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.fixture
def shop(api: Api, redis_url: str) -> None:
    """Create the resources of IDS."""
    api.create("topics/orders")
    api.create("subscriptions/sub", {"topic": "projects/shop/topics/orders"})
    api.post("serviceAccounts", {"accountId": "pusher"})


@pytest.mark.parametrize("request_line", REQUESTS)
@FEW
@given(data=st.data())
def test_every_answer_is_documented(
    shop: None, application: WSGIHandler, request_line: str, data: st.DataObject
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi import checks

    operation = operations()[request_line]
    names = [parameter.name for parameter in operation.path_parameters]
    ids = {name: data.draw(st.sampled_from([IDS.get(name, "x1234567"), "missing-one"])) for name in names}
    mode = data.draw(st.sampled_from(GenerationMode))
    case = data.draw(operation.as_strategy(generation_mode=mode, path_parameters=ids))

    response = case.call(app=application, headers={"Accept-Encoding": "identity"})

    assert response.status_code < 500 or response.status_code == 501
    conformances = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
    ]
    case.validate_response(response, checks=conformances)
