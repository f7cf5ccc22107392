"""The diagnosis of each broken set-up names the step that fails and says what to do."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.utils import translation

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lanes
from deliveries.backlog.records import Lane
from deliveries.backlog.regions import KEY as UNSERVED_KEY
from deliveries.client.dialer import Dialer
from deliveries.client.request import PushResult
from deliveries.diagnosis.endpoint import answer_step
from deliveries.inspection import lanes
from deliveries.models import Delivery
from deliveries.rules.outcome import Reason
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.models import Project, ServiceAccount, Subscription, Topic
from tests.certificates import Authority
from tests.integration.admin.test_chinese import english_in
from tests.lanes import lane_fields, note_maintenance
from tests.metricrows import add_events
from tests.ports import free_port
from tests.receiver import Answer, Receiver
from tests.restapi import Api, root_client, staff_client

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
NAME = "projects/shop/subscriptions/hello"
EMAIL = "pusher@shop.iam.gserviceaccount.com"


class SetUp:
    """A subscription that works, and ways to break it."""

    def __init__(self, api: Api, settings: Any, folder: Path, stack: ExitStack) -> None:
        self.api = api
        self.settings = settings
        self.stack = stack
        self.authority = Authority(folder)
        other_folder = folder / "other"
        other_folder.mkdir()
        self.other_authority = Authority(other_folder)
        self.receiver = stack.enter_context(Receiver(default=204))
        settings.PUSH_CA_FILE = str(self.authority.ca_file)
        api.create("topics/orders")
        api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": {"pushEndpoint": self.receiver.url}})
        self.revive_worker()

    @property
    def row(self) -> Subscription:
        return Subscription.objects.get(subscription_id="hello")

    @property
    def lane(self) -> Lane:
        return Lane(self.row.pk, "local")

    def revive_worker(self) -> None:
        client = default_backlog().client
        for key, member in (("ph:workers", "push@test"), ("ph:regions", "local")):
            client.zadd(key, {member: time.time() * 1000})
        note_maintenance()

    def change(self, **columns: Any) -> None:
        """Change columns, also to values that the API refuses, and pass them on to Redis."""
        Subscription.objects.filter(subscription_id="hello").update(**columns)
        configure_lanes(self.row.pk, action="known")

    def endpoint(self, url: str) -> None:
        self.change(push_endpoint=url)

    def serve_tls(self, *names: str, expired: bool = False, authority: Authority | None = None) -> None:
        context = (authority or self.authority).server_context(*names, expired=expired)
        receiver = Receiver(default=204)
        receiver._server.socket = context.wrap_socket(receiver._server.socket, server_side=True)
        self.stack.enter_context(receiver)
        self.endpoint(f"https://localhost:{receiver.port}/push")

    def account(self) -> ServiceAccount:
        self.api.post("serviceAccounts", {"accountId": "pusher"})
        self.change(oidc_service_account_email=EMAIL)
        return ServiceAccount.objects.get(email=EMAIL)

    def publish(self, **attributes: str) -> None:
        assert (
            self.api.post("topics/orders:publish", {"messages": [{"attributes": attributes or {"kind": "any"}}]}).status
            == 200
        )

    def lane_state(self, **fields: Any) -> None:
        default_backlog().client.hset(f"{self.lane.root}:s", mapping=fields)

    def diagnose_in_chinese(self, *, send_probe: bool = False) -> str:
        """Return the console's page with a diagnosis."""
        client = root_client()
        client.cookies["django_language"] = "zh-hans"
        address = f"/admin/deliveries/delivery/act/{self.row.pk}/diagnose/"
        return client.post(address, {"probe": "yes"} if send_probe else {}).content.decode()

    def diagnose(self, *, send_probe: bool = False, language: str = "en") -> dict[str, Any]:
        headers = {"Accept-Language": language}
        answer = self.api.call("POST", "subscriptions/hello:diagnose", {"sendProbe": send_probe}, **headers)
        assert answer.status == 200, answer
        body: dict[str, Any] = answer.body
        return body


@pytest.fixture
def setup(api: Api, redis_url: str, settings: Any, tmp_path: Path) -> Iterator[SetUp]:
    with ExitStack() as stack:
        yield SetUp(api, settings, tmp_path, stack)


def no_topic(setup: SetUp) -> None:
    assert setup.api.delete("topics/orders").status == 200


def unknown_account(setup: SetUp) -> None:
    setup.change(oidc_service_account_email=EMAIL)


def disabled_account(setup: SetUp) -> None:
    setup.account()
    assert setup.api.post(f"serviceAccounts/{EMAIL}:disable").status == 200


def agent_without_role(setup: SetUp) -> None:
    setup.account()
    project = Project.objects.get(project_id="shop")
    agent = f"serviceAccount:{project.service_agent}"
    grants.revoke_role(get_resource("projects/shop"), role="roles/pubsub.serviceAgent", member=agent)


def no_worker(setup: SetUp) -> None:
    default_backlog().client.delete("ph:workers")


def busy_worker(setup: SetUp) -> None:
    default_backlog().beat("push@test", oldest_job_seconds=90)


def no_redis(setup: SetUp) -> None:
    setup.settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"


def full_redis(setup: SetUp) -> None:
    client = default_backlog().shared
    setup.stack.callback(client.config_set, "maxmemory", "0")
    client.config_set("maxmemory", "1")


def region_taken_over(setup: SetUp) -> None:
    setup.publish()
    now_ms = time.time() * 1000
    default_backlog().client.zadd("ph:regions", {"local": now_ms - 100_000, "other": now_ms})


def dead_letter_policy(setup: SetUp, **change: Any) -> None:
    """Let the subscription have a dead-letter topic, and change one or the other."""
    setup.api.create("topics/dead")
    setup.change(dead_letter_topic=Topic.objects.get(topic_id="dead"), max_delivery_attempts=5)
    Topic.objects.filter(topic_id="dead").update(**change)
    setup.publish()


def deleted_dead_letter_topic(setup: SetUp) -> None:
    dead_letter_policy(setup)
    assert setup.api.delete("topics/dead").status == 200


def denied_dead_letters(setup: SetUp) -> None:
    dead_letter_policy(setup)
    setup.settings.DEVELOPMENT = False


def banned_dead_letters(setup: SetUp) -> None:
    policy = {"allowedPersistenceRegions": ["elsewhere"], "enforceInTransit": True}
    dead_letter_policy(setup, message_storage_policy=policy)


def unserved_region(setup: SetUp) -> None:
    setup.publish()
    default_backlog().client.delete("ph:regions")


def no_maintenance(setup: SetUp) -> None:
    default_backlog().client.delete(UNSERVED_KEY)


def filter_without_match(setup: SetUp) -> None:
    setup.api.create("subscriptions/all", {"topic": TOPIC})
    setup.change(filter='attributes.kind = "order"')
    setup.publish(kind="refund")


def transform(setup: SetUp, code: str) -> None:
    setup.change(message_transforms=[{"javascriptUdf": {"functionName": "f", "code": code}}])


def transform_that_does_not_compile(setup: SetUp) -> None:
    # The engine's own errors are in English, so the function throws a Chinese one.
    transform(setup, "throw '代码无效';")


def transform_that_fails_on_a_message(setup: SetUp) -> None:
    setup.publish(kind="order")
    setup.publish(kind="refund")
    transform(setup, "function f(message) { if (message.attributes.kind === 'refund') throw '退款'; return message; }")


def own_listener(setup: SetUp) -> None:
    setup.settings.HTTP_ADDRESS = ("127.0.0.1", setup.receiver.port)


def private_address(setup: SetUp) -> None:
    setup.settings.ALLOW_PRIVATE = False


def plain_server(setup: SetUp) -> None:
    setup.endpoint(setup.receiver.url.replace("http:", "https:"))


def paused_by_backoff(setup: SetUp) -> None:
    setup.publish()
    setup.lane_state(resume=time.time() * 1000 + 60_000)


def slowed_by_nacks(setup: SetUp) -> None:
    setup.publish()
    setup.lane_state(s=0.2, gap=420)


def full_window(setup: SetUp) -> None:
    for _ in range(4):
        setup.publish()
    setup.lane_state(w=3, out=3)


def other_mode(setup: SetUp) -> None:
    setup.lane_state(mode=2)


def nacked_before(setup: SetUp) -> None:
    setup.publish()
    Delivery.objects.update(last_result="404", last_attempt_at="2026-11-22T05:00:00Z")


#: How to break a set-up, the step that then fails, and words of the summary.
BROKEN: dict[str, tuple[Callable[[SetUp], Any], str, str]] = {
    "paused": (lambda setup: setup.change(paused=True), "subscription", "Paused by hand"),
    "detached": (lambda setup: setup.change(detached=True), "subscription", "Detached"),
    "topic deleted": (no_topic, "subscription", "topic was deleted"),
    "http denied": (lambda setup: setattr(setup.settings, "ALLOW_HTTP", False), "url", "scheme"),
    "port denied": (lambda setup: setup.endpoint("https://example.com:22/"), "url", "port 22"),
    "no URL": (lambda setup: setup.endpoint("https://user@example.com/"), "url", "Correct the push endpoint"),
    "unknown account": (unknown_account, "token", "does not exist"),
    "disabled account": (disabled_account, "token", "Enable it"),
    "agent may not mint": (agent_without_role, "token", "roles/iam.serviceAccountTokenCreator"),
    "no push worker": (no_worker, "worker", "No push worker"),
    "busy push worker": (busy_worker, "worker", "has had a job for 90 s"),
    "no Redis": (no_redis, "worker", "Redis takes no messages: Redis cannot be reached."),
    "full Redis": (full_redis, "worker", "Redis takes no messages: Redis has no memory left."),
    "no maintenance": (no_maintenance, "maintenance", "lost messages are not found"),
    "unserved region": (unserved_region, "region", "PUSHHUB_REGION=local"),
    "region taken over": (region_taken_over, "region", "Workers of other regions push its messages. Start a push"),
    "no dead letter topic": (
        deleted_dead_letter_topic,
        "dead letters",
        "Set the subscription's dead letter topic again",
    ),
    "denied dead letters": (denied_dead_letters, "dead letters", "roles/pubsub.publisher"),
    "banned dead letters": (banned_dead_letters, "dead letters", "allows nothing from local"),
    "filter without match": (filter_without_match, "filter", "matches: 0 of the 1 newest"),
    "transform that does not compile": (transform_that_does_not_compile, "transforms", "代码无效"),
    "transform that fails": (transform_that_fails_on_a_message, "transforms", "退款"),
    "no address": (lambda setup: setup.endpoint("http://nowhere.invalid/"), "name", "has no address"),
    "metadata server": (lambda setup: setup.endpoint("http://169.254.169.254/"), "guard", "PUSHHUB_ALLOWED_NETWORKS"),
    "own listener": (own_listener, "guard", "denies"),
    "private address": (private_address, "guard", "denies"),
    "nothing listens": (lambda setup: setup.endpoint(f"http://127.0.0.1:{free_port()}/"), "connection", "Start"),
    "no TLS": (plain_server, "certificate", "TLS handshake fails"),
    "expired": (
        lambda setup: setup.serve_tls("localhost", expired=True),
        "certificate",
        "expired. Pushes end with tls_failed. Renew it.",
    ),
    "other host name": (lambda setup: setup.serve_tls("other.test"), "certificate", "another host name"),
    "unknown authority": (
        lambda setup: setup.serve_tls("localhost", authority=setup.other_authority),
        "certificate",
        "PUSHHUB_PUSH_CA_FILE",
    ),
    "push backoff": (paused_by_backoff, "flow", "Paused by push backoff"),
    "slowed by nacks": (slowed_by_nacks, "flow", "one message every 420 ms"),
    "full window": (full_window, "flow", "push window is full"),
    "other settings in Redis": (other_mode, "flow", "next audit"),
    "nacked before": (nacked_before, "answer", "Correct the path"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_set_up_is_diagnosed(setup: SetUp, name: str) -> None:
    break_it, step, words = BROKEN[name]
    break_it(setup)
    diagnosis = setup.diagnose()
    assert not diagnosis["healthy"], diagnosis
    assert diagnosis["summary"].startswith(f"{step}: "), diagnosis
    assert words in diagnosis["summary"]
    [culprit] = [row for row in diagnosis["steps"] if row["name"] == step]
    assert culprit["advice"]
    page = setup.diagnose_in_chinese()
    assert ('class="status bad"' in page) or ('class="status warn"' in page)
    assert english_in(page) == set()
    assert setup.receiver.requests == []


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (503, "answered 503. Look at the endpoint's own log"),
        (403, "answered 403. Check how the endpoint verifies the token"),
        (401, "No token was sent, because the subscription has no service account."),
        (405, "answered 405. Correct the path"),
        (Answer(302, headers={"Location": "/"}), "pushes do not follow redirects"),
        (429, "x-pushhub-rate"),
        (Answer(hang_up=True), "The probe failed: reset"),
    ],
)
def test_a_probe_reports_the_answer_of_the_endpoint(setup: SetUp, answer: int | Answer, words: str) -> None:
    setup.receiver.default = answer
    diagnosis = setup.diagnose(send_probe=True)
    assert diagnosis["summary"].startswith("answer: ") and words in diagnosis["summary"], diagnosis
    assert english_in(setup.diagnose_in_chinese(send_probe=True)) == set()


@pytest.mark.parametrize("name", ["nothing listens", "full window", "unknown account"])
def test_the_language_that_a_client_accepts_does_not_change_the_api(setup: SetUp, name: str) -> None:
    break_it, _, words = BROKEN[name]
    break_it(setup)
    assert words in setup.diagnose(language="zh-hans")["summary"]


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("status", "reason"),
    [*((status, "") for status in (204, 302, 400, 401, 404, 413, 429, 503)), *((0, reason) for reason in Reason)],
)
def test_every_answer_of_an_endpoint_is_explained_in_chinese(status: int, reason: str) -> None:
    with translation.override("zh-hans"):
        step = answer_step(PushResult(status, reason, 12.0))
    assert set(re.findall("[A-Za-z_]{2,}", step.message)) <= {"DNS", "TLS", "HTTP", "URL", reason}
    assert english_in(f"<p>{step.advice}</p>") == set()


def test_a_healthy_set_up_has_no_findings_and_no_message_is_sent(setup: SetUp) -> None:
    diagnosis = setup.diagnose()
    assert diagnosis["healthy"], diagnosis
    assert diagnosis["summary"] == "No fault was found, but not every step was tried: answer."
    assert setup.receiver.requests == []


def test_without_redis_no_step_passes_that_needs_it_and_the_others_are_told(setup: SetUp) -> None:
    dead_letter_policy(setup)
    no_topic(setup)
    no_redis(setup)
    steps = {step["name"]: step["status"] for step in setup.diagnose()["steps"]}
    assert (steps["subscription"], steps["worker"]) == ("warning", "failed")
    assert {steps[name] for name in ("maintenance", "flow", "region", "ordering")} == {"skipped"}


def test_a_pull_subscription_is_not_well_without_redis(setup: SetUp) -> None:
    setup.endpoint("")
    no_redis(setup)
    diagnosis = setup.diagnose()
    assert not diagnosis["healthy"]
    assert diagnosis["summary"].startswith("worker: Redis takes no messages: Redis cannot be reached.")


def test_a_region_that_another_one_holds_is_not_judged(setup: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "holds", lambda region: region == "local")
    # Its workers beat in its own Redis. This one has noted once that messages wait there.
    default_backlog().client.zadd("ph:regions", {"far": time.time() * 1000 - 100_000})
    setup.publish()
    Delivery.objects.update(region="far")
    diagnosis = setup.diagnose()
    steps = {step["name"]: (step["status"], step["message"]) for step in diagnosis["steps"]}
    assert steps["region"] == ("skipped", "Only the regions that hold them know about far.")
    assert steps["flow"] == (
        "skipped",
        "Only the region that holds far knows how messages fare there. Undelivered there: 1.",
    )
    assert diagnosis["healthy"], diagnosis


def test_what_holds_nothing_back_is_not_the_first_thing_to_look_at(setup: SetUp) -> None:
    nacked_before(setup)
    no_maintenance(setup)
    assert setup.diagnose()["summary"].startswith("answer: "), "the messages wait because of the endpoint"


def beat(**seconds_ago: float) -> None:
    """Let the last worker of each of these regions have lived so long ago, and none in others."""
    client = default_backlog().client
    client.delete("ph:regions")
    client.zadd("ph:regions", {region: (time.time() - seconds) * 1000 for region, seconds in seconds_ago.items()})


def test_other_settings_in_redis_are_not_what_holds_messages_back_that_no_worker_pushes(setup: SetUp) -> None:
    setup.publish()
    other_mode(setup)
    beat(far=0)
    diagnosis = setup.diagnose()
    assert diagnosis["summary"].startswith("region: Redis knows of no push worker of region local."), diagnosis
    steps = {step["name"]: (step["status"], step["message"]) for step in diagnosis["steps"]}
    assert steps["flow"] == ("skipped", "An earlier step fails.")


def test_a_region_without_a_worker_is_not_blamed_for_messages_of_another_one(setup: SetUp) -> None:
    setup.publish()
    Delivery.objects.update(region="far")
    beat(far=0, local=30)
    steps = {step["name"]: (step["status"], step["message"]) for step in setup.diagnose()["steps"]}
    waits = "No result of a push is known yet. Outstanding messages: 0 of 1 undelivered."
    assert steps["flow"] == ("ok", waits)
    none = r"No push worker of region local has lived for \d\d s\. Messages that wait: 0\."
    assert re.fullmatch(none, steps["region"][1])


def test_the_condition_of_a_region_counts_the_messages_there_alone(setup: SetUp) -> None:
    setup.settings.REGIONS = ["far", "local", "near"]
    for region in ("far", "near", "near"):
        setup.publish()
        Delivery.objects.filter(region="local").update(region=region)
    beat(far=30, near=0, local=0)
    [region] = [step for step in setup.diagnose()["steps"] if step["name"] == "region"]
    assert re.fullmatch(r"No push worker of region far .* Messages that wait: 1\.", region["message"])
    beat(far=0, near=0, local=0)
    [flow] = [step for step in setup.diagnose()["steps"] if step["name"] == "flow"]
    assert re.match(r"In the region (far: .* of 1|near: .* of 2) undelivered", flow["message"])


def test_a_filter_that_has_matched_before_is_not_blamed(setup: SetUp) -> None:
    filter_without_match(setup)
    add_events(NAME, at=utcnow(), count=1)
    [step] = [step for step in setup.diagnose()["steps"] if step["name"] == "filter"]
    assert (step["status"], step["message"][:42]) == ("ok", "Messages that the filter matches: 0 of the")


@pytest.mark.parametrize(
    ("error", "result"), [(TimeoutError, "connect_timeout"), (ConnectionRefusedError, "connect_failed")]
)
def test_the_step_names_how_pushes_end_that_get_no_connection(
    setup: SetUp, monkeypatch: pytest.MonkeyPatch, error: type[OSError], result: str
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Dialer, "_connect_one", refuse)
    assert f"Pushes end with {result}." in setup.diagnose()["summary"]


@pytest.mark.parametrize(
    ("seconds_ago", "summary"),
    [
        (59, "Nothing is wrong: each step was tried just now, and works."),
        (61, "No fault was found, but not every step was tried: answer."),
    ],
)
def test_an_ack_proves_for_a_minute_that_the_endpoint_answers(
    setup: SetUp, seconds_ago: int, summary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    setup.lane_state(**lane_fields(acked_ms=(now - seconds_ago) * 1000))
    monkeypatch.setattr(time, "time", lambda: now)
    diagnosis = setup.diagnose()
    assert diagnosis["summary"] == summary
    [answer] = [step for step in diagnosis["steps"] if step["name"] == "answer"]
    assert answer["message"] == f"The endpoint acknowledged a push {seconds_ago} s ago."
    assert setup.receiver.requests == []


def test_what_the_sent_token_has_is_shown_beside_a_401(setup: SetUp) -> None:
    setup.account()
    setup.receiver.default = 401
    advice = f"issuer {setup.settings.ISSUER}, the audience {setup.receiver.url} and the email {EMAIL}."
    assert setup.diagnose(send_probe=True)["summary"].endswith(advice)


def test_a_probe_is_a_push_with_a_token_and_an_attribute(setup: SetUp) -> None:
    setup.account()
    diagnosis = setup.diagnose(send_probe=True)
    assert diagnosis["healthy"], diagnosis
    assert diagnosis["summary"] == "Nothing is wrong: each step was tried just now, and works."
    [request] = setup.receiver.requests
    assert request.json["message"]["attributes"] == {"pushhub-probe": "true"}
    assert request.json["subscription"] == NAME
    token = request.headers["authorization"].removeprefix("Bearer ")
    assert token.count(".") == 2 and token not in str(diagnosis)


def test_the_message_that_a_transform_fails_on_is_named(setup: SetUp) -> None:
    transform_that_fails_on_a_message(setup)
    refund = Delivery.objects.order_by("message_id").last()
    assert refund is not None
    assert f"message {refund.message_id}," in setup.diagnose()["summary"]


def test_transforms_that_work_or_are_switched_off_hold_nothing_back(setup: SetUp) -> None:
    transform_that_fails_on_a_message(setup)
    setup.change(
        message_transforms=[
            {"javascriptUdf": {"functionName": "f", "code": "function f() { throw 1; }"}, "disabled": True},
            {"javascriptUdf": {"functionName": "g", "code": "function g(message) { return message; }"}},
        ]
    )
    [step] = [step for step in setup.diagnose()["steps"] if step["name"] == "transforms"]
    assert step["status"] == "ok"
    assert "none of the oldest waiting messages. Tried: 2." in step["message"]


def test_a_certificate_of_a_trusted_authority_is_valid(setup: SetUp) -> None:
    setup.serve_tls("localhost")
    assert setup.diagnose(send_probe=True)["healthy"]


def test_no_step_reveals_an_address_or_why_it_is_denied(setup: SetUp) -> None:
    """A name may lead into the network around PushHub; the answer must not be a map of that network."""
    private_address(setup)
    setup.endpoint(f"http://localhost.localdomain:{setup.receiver.port}/")
    setup.settings.ALLOWED_NETWORKS = []
    text = str(setup.diagnose())
    assert "127.0.0.1" not in text and "::1" not in text and "loopback" not in text


def test_viewers_may_not_diagnose(setup: SetUp) -> None:
    grants.grant_role(get_resource("projects/shop"), role="roles/pubsub.viewer", member="user:ada@example.com")
    ada = Api()
    ada.sign_in("ada@example.com")
    answer = ada.post("subscriptions/hello:diagnose", {})
    assert (answer.status, answer.error["status"]) == (403, "PERMISSION_DENIED")


def test_send_probe_must_be_true_or_false(setup: SetUp) -> None:
    answer = setup.api.post("subscriptions/hello:diagnose", {"sendProbe": "yes"})
    assert (answer.status, answer.fields) == (400, ["sendProbe"])
    answer = setup.api.post("subscriptions/hello:diagnose", {"sendprobe": True})
    assert (answer.status, answer.fields) == (400, ["sendprobe"])


def test_a_server_that_answers_no_tls_handshake_does_not_hold_up_the_diagnosis(setup: SetUp) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        setup.endpoint(f"https://127.0.0.1:{silent_server.getsockname()[1]}/")
        assert setup.diagnose()["summary"].startswith("certificate: The TLS handshake fails.")


def test_a_diagnosis_connects_from_the_addresses_that_pushes_come_from(setup: SetUp) -> None:
    """A firewall may let those alone through."""
    setup.settings.PUSH_SOURCE_ADDRESSES = ("127.0.0.7",)
    with socket.create_server(("127.0.0.1", 0)) as server:
        setup.endpoint(f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert setup.diagnose()["healthy"]
        connection, (source, _) = server.accept()
        connection.close()
    assert source == "127.0.0.7"


def test_the_console_diagnoses_and_sends_a_probe_on_request(setup: SetUp) -> None:
    client = root_client()
    pk = Subscription.objects.get().pk
    page = client.get(f"/admin/deliveries/delivery/state/{pk}/").content.decode()
    assert f'action="../../act/{pk}/diagnose/"' in page
    address = f"/admin/deliveries/delivery/act/{pk}/diagnose/"
    assert client.get(address).status_code == 405
    healthy_page = client.post(address)
    assert healthy_page.context["culprit"] is None
    assert "not every step was tried: Answer of the endpoint." in healthy_page.content.decode()
    assert setup.receiver.requests == []
    setup.receiver.default = 503
    probe_page = client.post(address, {"probe": "yes"})
    assert (probe_page.context["culprit"]["name"], probe_page.context["culprit"]["level"]) == (
        "Answer of the endpoint",
        "bad",
    )
    assert "answered 503" in probe_page.content.decode()
    assert len(setup.receiver.requests) == 1


def test_the_console_offers_no_diagnosis_that_would_be_refused(setup: SetUp) -> None:
    grants.grant_role(get_resource("projects/shop"), role="roles/pubsub.viewer", member="user:ada@example.com")
    client = staff_client("ada")
    pk = Subscription.objects.get().pk
    assert "diagnose" not in client.get(f"/admin/deliveries/delivery/state/{pk}/").content.decode()
    assert client.post(f"/admin/deliveries/delivery/act/{pk}/diagnose/").status_code == 403
