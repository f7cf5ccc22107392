"""Projects that VPC Service Controls protect (docs/spec-access.md#service-perimeters)."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Model

from subscriptions.models import Project, Subscription
from subscriptions.models.iam import Perimeter
from subscriptions.services.perimeters import PROHIBITED, is_run_app
from subscriptions.services.projects import create_project
from tests.restapi import Answer, Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
RUN_APP = "https://receiver-abc123xyz-uc.a.run.app"
ELSEWHERE = "https://example.com/push"


@pytest.fixture
def api(redis_url: str) -> Api:
    """Create `existing`, which is pushed to another host, and `waiting`, which is pulled."""
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/existing", {"topic": TOPIC, "pushConfig": {"pushEndpoint": ELSEWHERE}})
    api.create("subscriptions/waiting", {"topic": TOPIC})
    return api


def protect(project: str = "shop", **fields: Any) -> Perimeter:
    perimeter = Perimeter.objects.create(title="crown jewels", **fields)
    perimeter.projects.add(Project.objects.get(project_id=project))
    return perimeter


def create(api: Api, endpoint: str, project: str = "shop") -> Answer:
    path = f"/v1/projects/{project}/subscriptions/new"
    return api.put(path, {"topic": TOPIC, "pushConfig": {"pushEndpoint": endpoint}})


def refused(answer: Answer) -> bool:
    if answer.status != 403:
        return False
    assert answer.error["status"] == "PERMISSION_DENIED"
    assert answer.error["message"] == PROHIBITED
    return True


def stored(model: type[Model]) -> list[dict[str, Any]]:
    return list(model._default_manager.order_by("pk").values())


def test_you_cannot_create_new_push_subscriptions_for_any_projects_protected_by_vpc_service_controls(api: Api) -> None:
    protect()
    before = stored(Subscription)
    assert refused(create(api, ELSEWHERE))
    assert stored(Subscription) == before


def test_unless_the_push_endpoints_are_set_to_cloud_run_services_with_default_run_app_urls(api: Api) -> None:
    protect()
    assert create(api, RUN_APP + "/messages").status == 200


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://service-1234567890.europe-west1.run.app",
        "https://receiver-abc123xyz-uc.a.run.app/",
        "https://r.a.run.app/a/b?c=d",
    ],
)
def test_default_run_app_urls(endpoint: str) -> None:
    assert is_run_app(endpoint)


@pytest.mark.any_database
@pytest.mark.parametrize(
    "endpoint",
    [
        "https://run.app/push",
        "https://a.run.app/push",
        "https://evilrun.app/push",
        "https://receiver-abc-uc.a.run.app.example.com/",
        "https://receiver-abc-uc.a.run.app@example.com/",
        "https://example.com/receiver-abc-uc.a.run.app",
        "https://example.com/?receiver.a.run.app",
        "https://example.com#.a.run.app",
        "https://receiver-abc-uc.b.run.app/",
        "https://receiver.europe-west1.run.app.evil.org",
        "https://receiver-abc-uc.a.run.app:8443/",
        "https://user@receiver-abc-uc.a.run.app/",
        "https://receiver-abc-uc.a.run.app./",
        "https://receiver-abc-uc.a.run.app\\@example.com/",
        "https://receiver\u3002a.run.app/",
        "https://-a.a.run.app/",
        "http://receiver-abc-uc.a.run.app/",
        "https://receiver.custom.example/run.app",
        "https://[::1]/a.run.app",
    ],
)
def test_custom_domains_do_not_work_and_neither_do_look_alikes(endpoint: str) -> None:
    assert not is_run_app(endpoint)


@pytest.mark.parametrize(
    "update",
    [
        {"pushConfig": {"pushEndpoint": RUN_APP}},
        {"pushConfig": {"pushEndpoint": ELSEWHERE + "/other"}},
        {"pushConfig": {"pushEndpoint": ELSEWHERE, "attributes": {"x-pushhub-rate": "5"}}},
        {"pushConfig": {}},
    ],
)
def test_existing_push_subscriptions_cannot_be_updated_for_any_projects_protected(api: Api, update: Any) -> None:
    protect()
    before = stored(Subscription)
    assert refused(api.post("subscriptions/existing:modifyPushConfig", update))
    patch = {"subscription": update, "updateMask": "pushConfig"}
    assert refused(api.patch("subscriptions/existing", patch))
    assert stored(Subscription) == before


@pytest.mark.parametrize(
    ("update", "mask"),
    [
        ({"labels": {"team": "a"}}, "labels"),
        ({"ackDeadlineSeconds": 20}, "ackDeadlineSeconds"),
        ({"deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/letters"}}, "deadLetterPolicy"),
        ({"pushConfig": {"pushEndpoint": ELSEWHERE}}, "pushConfig"),
    ],
)
def test_no_field_of_a_push_subscription_can_be_updated(api: Api, update: Any, mask: str) -> None:
    api.create("topics/letters")
    protect()
    before = stored(Subscription)
    assert refused(api.patch("subscriptions/existing", {"subscription": update, "updateMask": mask}))
    assert stored(Subscription) == before


def test_a_subscription_that_pushes_to_run_app_cannot_be_updated_either(api: Api) -> None:
    protect()
    assert create(api, RUN_APP).status == 200
    other = {"pushConfig": {"pushEndpoint": RUN_APP + "/other"}}
    assert refused(api.post("subscriptions/new:modifyPushConfig", other))
    assert refused(api.patch("subscriptions/new", {"subscription": other, "updateMask": "pushConfig"}))


def test_a_pull_subscription_may_be_updated(api: Api) -> None:
    protect()
    patch = {"subscription": {"labels": {"team": "a"}}, "updateMask": "labels"}
    assert api.patch("subscriptions/waiting", patch).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "subscriptions/existing:detach"), ("DELETE", "subscriptions/existing")]
)
def test_an_existing_push_subscription_may_be_ended(api: Api, method: str, path: str) -> None:
    protect()
    assert api.call(method, path, {} if method == "POST" else None).status == 200


def test_existing_push_subscriptions_continue_to_function(api: Api) -> None:
    protect()
    assert api.get("subscriptions/existing").body["pushConfig"]["pushEndpoint"] == ELSEWHERE
    assert Subscription.objects.get(subscription_id="existing").push_endpoint == ELSEWHERE


def test_a_pull_subscription_may_begin_to_push_to_run_app_only(api: Api) -> None:
    protect()
    modify = "subscriptions/waiting:modifyPushConfig"
    assert refused(api.post(modify, {"pushConfig": {"pushEndpoint": ELSEWHERE}}))
    assert api.post(modify, {"pushConfig": {"pushEndpoint": RUN_APP}}).status == 200


def test_a_pull_subscription_may_be_created(api: Api) -> None:
    protect()
    assert api.put("subscriptions/pulled", {"topic": TOPIC}).status == 200


def test_other_projects_and_disabled_perimeters_are_unrestricted(api: Api) -> None:
    create_project(project_id="depot")
    protect("depot")
    assert create(api, ELSEWHERE).status == 200
    assert refused(create(api, ELSEWHERE, project="depot"))
    Perimeter.objects.update(enabled=False)
    assert create(api, ELSEWHERE, project="depot").status == 200


def test_perimeters_by_command(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("perimeter", "create", "crown jewels", "shop")
    assert refused(create(api, ELSEWHERE))
    call_command("perimeter", "list")
    assert capsys.readouterr().out == "crown jewels  on  shop\n"
    with pytest.raises(CommandError, match="already"):
        call_command("perimeter", "create", "crown jewels", "shop")
    with pytest.raises(CommandError, match="none"):
        call_command("perimeter", "create", "another", "none")
    assert Perimeter.objects.count() == 1, "the failed request left no rows"
    call_command("perimeter", "delete", "crown jewels")
    assert create(api, ELSEWHERE).status == 200
    with pytest.raises(CommandError, match="no perimeter"):
        call_command("perimeter", "delete", "crown jewels")
