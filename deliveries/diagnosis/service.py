"""Says why the messages of a subscription are not delivered, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import redis
from django.conf import settings
from django.utils.translation import gettext as _

from deliveries.backlog.backlog import Backlog, Lane
from deliveries.backlog.lanes import lane_agrees
from deliveries.backlog.lanestate import LaneState, parse_lane_state
from deliveries.backlog.regions import regions_unserved
from deliveries.diagnosis.endpoint import PROBE_SECONDS, endpoint_steps, probe, status_advice
from deliveries.diagnosis.ordering import ordering_step
from deliveries.diagnosis.steps import Diagnosis, Step, StepName, StepStatus, failed, ok, skipped, warning
from deliveries.diagnosis.transforms import transforms_step
from deliveries.inspection.words import result_text
from deliveries.models import Delivery, Message
from deliveries.push.sending.httpclient import Headers, client_options
from deliveries.push.sending.plans import JSON_HEADER
from deliveries.rules.envelope import metadata_headers, push_body, unwrapped_body
from deliveries.rules.payload import parse_attributes, wire_message
from deliveries.store import statements
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.export.readiness import impatient_redis, push_workers
from pushhub.common.errors import PushHubError
from pushhub.common.outages import outage_or_raise
from pushhub.common.principals import Principal
from pushhub.common.pushurls import BadEndpoint, Origin, parse_push_url
from pushhub.common.tenantpool import step_aside_or_refuse
from subscriptions.iam import access
from subscriptions.iam.roles import ACT_AS
from subscriptions.identity.tokens import TokenDenied, mint_id_token
from subscriptions.models import ServiceAccount, Subscription
from subscriptions.resources.filters import matcher
from subscriptions.selectors import PushSettings, push_settings_of

#: The newest messages of the topic that a filter is tried on.
FILTERED_MESSAGES = 100
#: Waiting messages that are counted to say how long they take.
MAX_COUNTED = 10_000
#: Attribute of a probe, for the endpoint to tell it from messages.
PROBE_ATTRIBUTE = "pushhub-probe"
ORDER = tuple(StepName)


def diagnose_subscription(subscription: Subscription, *, caller: Principal, send_probe: bool = False) -> Diagnosis:
    """Check each step of a push. `send_probe` sends one message without data to the endpoint.

    Raises ResourceExhausted while too many others wait for something.
    """
    step_aside_or_refuse()
    steps = {step.name: step for step in _steps(subscription, caller, send_probe=send_probe)}
    reached = [steps.get(name) or skipped(name, _("An earlier step fails.")) for name in ORDER]
    return Diagnosis(subscription.name, reached)


def _steps(subscription: Subscription, caller: Principal, *, send_probe: bool) -> Iterator[Step]:
    """Yield the steps; what the endpoint needs for a push comes first, and the first failure there ends its part."""
    push_settings = push_settings_of(subscription.pk)
    step = _subscription(subscription, push_settings)
    yield step
    if push_settings is None or step.status == StepStatus.FAILED:
        return
    yield from _inside(subscription, push_settings)
    try:
        origin = parse_push_url(
            push_settings.endpoint, allow_http=settings.ALLOW_HTTP, allowed_ports=frozenset(settings.ALLOWED_PORTS)
        ).origin
    except BadEndpoint as error:
        fault = _(error.template) % error.values
        yield failed(
            StepName.URL,
            _("The endpoint's URL cannot be pushed to: %(fault)s.") % {"fault": fault},
            _("Correct the push endpoint."),
        )
        return
    yield ok(StepName.URL, _("The endpoint's URL can be pushed to."))
    token, authorization = _token(push_settings, caller)
    yield token
    yield from _endpoint(
        push_settings, origin, authorization, can_probe=token.status != StepStatus.FAILED and send_probe
    )


def _subscription(subscription: Subscription, push_settings: PushSettings | None) -> Step:
    name = StepName.SUBSCRIPTION
    if subscription.detached:
        return failed(
            name, _("The subscription is detached from its topic."), _("Create a new one: it cannot be attached.")
        )
    if push_settings is None or not push_settings.endpoint:
        return failed(name, _("It is a pull subscription."), _("Set a push endpoint, or pull the messages."))
    if push_settings.paused:
        return failed(name, _("It is paused by hand."), _("Resume it."))
    if subscription.topic_id is None:
        return failed(
            name, _("The topic was deleted: nothing is published to it."), _("Create a subscription of another topic.")
        )
    return ok(name, _("It is a push subscription of an existing topic."))


def _inside(subscription: Subscription, push_settings: PushSettings) -> Iterator[Step]:
    """Yield what is to be checked inside PushHub."""
    yield _filter(subscription)
    yield transforms_step(subscription)
    try:
        workers = push_workers()
        if workers.status == Status.UNAVAILABLE:
            yield failed(
                StepName.WORKER,
                _("No push worker gives a sign of life."),
                _("Start one, or look at the log of those there are."),
            )
        elif workers.status == Status.DEGRADED:
            yield warning(
                StepName.WORKER,
                _("A push worker has had a job for %(age)d s, such as reading a backlog from the database.")
                % {"age": workers.figures["oldest_job_seconds"]},
                _("Look at the workers' logs and at the load of the database."),
            )
        else:
            yield ok(
                StepName.WORKER, _("%(count)d push workers give signs of life.") % {"count": workers.figures["workers"]}
            )
        yield _region(subscription)
        with impatient_redis() as client:
            yield ordering_step(Backlog(client), push_settings)
        yield _flow(push_settings)
    except redis.RedisError as error:
        outage_or_raise(error)
        yield failed(
            StepName.WORKER,
            _("Redis does not answer (%(error)s).") % {"error": type(error).__name__},
            _("Start Redis."),
        )


def _filter(subscription: Subscription) -> Step:
    if not subscription.filter:
        return ok(StepName.FILTER, _("It has no filter."))
    is_match = matcher(subscription.filter)
    rows = Message.objects.filter(topic=subscription.topic_id).order_by("-pk").values_list("attributes", flat=True)
    newest = [parse_attributes(attributes) for attributes in rows[:FILTERED_MESSAGES]]
    matches = sum(map(is_match, newest))
    if newest and not matches:
        return warning(
            StepName.FILTER,
            _("The filter matches none of the newest %(count)d messages of the topic.") % {"count": len(newest)},
            _("Compare the filter with the messages' attributes; a new filter takes a new subscription."),
        )
    words = {"matches": matches, "count": len(newest)}
    return ok(
        StepName.FILTER, _("The filter matches %(matches)d of the newest %(count)d messages of the topic.") % words
    )


def _region(subscription: Subscription) -> Step:
    unserved = {row.region for row in regions_unserved()}
    waiting = sorted(unserved.intersection(statements.lanes_waiting(subscription.pk)))
    if waiting:
        return warning(
            StepName.REGION,
            _("Messages wait in %(regions)s, where no push worker lives.") % {"regions": ", ".join(waiting)},
            _("Start a push worker with PUSHHUB_REGION=%(region)s; else workers of other regions take over.")
            % {"region": waiting[0]},
        )
    return ok(StepName.REGION, _("Every region with messages has a push worker."))


def _flow(push_settings: PushSettings) -> Step:
    """Window and backoff of each lane."""
    lanes = [
        Lane(push_settings.id, region) for region in {settings.REGION, *statements.lanes_waiting(push_settings.id)}
    ]
    with impatient_redis() as client:
        for lane in lanes:
            step = _lane_flow(lane, push_settings, parse_lane_state(client.hgetall(lane.state_key)))
            if step is not None:
                return step
    return ok(StepName.FLOW, _("The push window has room, and there is no push backoff."))


def _lane_flow(lane: Lane, push_settings: PushSettings, state: LaneState | None) -> Step | None:
    if state is None:
        return None
    if not lane_agrees(state, push_settings):
        return warning(
            StepName.FLOW,
            _("Redis has other settings of the subscription in %(region)s.") % {"region": lane.region},
            _("Wait for the next audit of the maintenance worker, at most a minute; is it running?"),
        )
    pause_ms = state.flow.resume_ms - time.time() * 1000
    if pause_ms > 0:
        return warning(
            StepName.FLOW,
            _("The push backoff pauses pushes for %(seconds).1f s, as too many were nacked.")
            % {"seconds": max(pause_ms / 1000, 0.1)},
            _last_result_advice(push_settings) or _("It ends by itself when pushes are acknowledged."),
        )
    gap_ms = state.flow.gap_ms
    if gap_ms > 0:
        return _slowed(lane, push_settings, gap_ms, nack_share=state.flow.nack_share)
    if state.outstanding >= max(state.window, 1):
        return warning(
            StepName.FLOW,
            _("The push window of %(window)d is full: the endpoint has yet to answer %(outstanding)d pushes.")
            % {"window": state.window, "outstanding": state.outstanding},
            _("Answer faster; the window grows with acks."),
        )
    return None


def _slowed(lane: Lane, push_settings: PushSettings, gap_ms: float, *, nack_share: float) -> Step:
    rows = Delivery.objects.filter(subscription_id=lane.subscription_id, region=lane.region).order_by()
    waiting = rows.values("pk")[:MAX_COUNTED].count()
    figures = {
        "share": round(100 * nack_share),
        "seconds": gap_ms / 1000,
        "count": waiting,
        "minutes": max(waiting * gap_ms / 60_000, 0.1),
    }
    return warning(
        StepName.FLOW,
        _("%(share)d %% of the results are nacks, so one message is pushed every %(seconds).2f s.") % figures
        + " "
        + _("At this rate, %(count)d messages take %(minutes).1f min.") % figures,
        _last_result_advice(push_settings) or _("It ends by itself when pushes are acknowledged."),
    )


def _token(push_settings: PushSettings, caller: Principal) -> tuple[Step, Headers]:
    """Check the account, the service agent and the caller's actAs, and mint the token."""
    email = push_settings.service_account_email
    if not email:
        return ok(StepName.TOKEN, _("Pushes carry no token.")), []
    try:
        token = mint_id_token(email=email, audience=push_settings.audience)
    except TokenDenied as denied:
        message, advice = {
            "account_unknown": (
                _("The service account %(email)s does not exist."),
                _("Create it, or choose another one."),
            ),
            "account_disabled": (_("The service account %(email)s is disabled."), _("Enable it.")),
            "token_denied": (
                _("The project's service agent may not mint tokens for %(email)s."),
                _("Grant it roles/iam.serviceAccountTokenCreator on the account."),
            ),
        }[denied.reason]
        return failed(StepName.TOKEN, message % {"email": email}, advice), []
    except PushHubError as error:
        return failed(StepName.TOKEN, _("The token cannot be signed."), _(error.message)), []
    authorization = [("Authorization", f"Bearer {token.token}")]
    account = ServiceAccount.objects.get(email=email)
    if not access.allowed(caller, ACT_AS, account):
        message = _("The token can be minted. You may not change the push settings: that needs %(permission)s.")
        return ok(StepName.TOKEN, message % {"permission": ACT_AS}), authorization
    return ok(StepName.TOKEN, _("The token can be minted.")), authorization


def _endpoint(
    push_settings: PushSettings, origin: Origin, authorization: Headers, *, can_probe: bool
) -> Iterator[Step]:
    options = client_options()
    steps = list(endpoint_steps(origin, options))
    yield from steps
    if steps[-1].status == StepStatus.FAILED:
        return
    if not can_probe:
        yield _last_answer(push_settings)
        return
    message = wire_message(0, b"", {PROBE_ATTRIBUTE: "true"}, "")
    if push_settings.no_wrapper:
        headers, body = [*authorization], unwrapped_body(message)
        if push_settings.write_metadata:
            headers += metadata_headers(message, subscription=push_settings.name)
    else:
        headers = [JSON_HEADER, *authorization]
        body = push_body(message, subscription=push_settings.name)
    seconds = min(PROBE_SECONDS, push_settings.ack_deadline_seconds)
    yield probe(push_settings.endpoint, headers, body, options, seconds=seconds, token=_token_text(push_settings))


def _last_answer(push_settings: PushSettings) -> Step:
    """Tell of the last nack among the messages that wait."""
    result = _last_result(push_settings.id)
    if not result:
        return skipped(StepName.ANSWER, _("No probe was asked for, and no waiting message was nacked."))
    return warning(
        StepName.ANSWER,
        _("The last push that was nacked ended with %(result)s.") % {"result": result_text(result)},
        _last_result_advice(push_settings) or _("Send a probe to see whether that has changed."),
    )


def _last_result(subscription_id: int) -> str:
    rows = Delivery.objects.filter(subscription_id=subscription_id, last_attempt_at__isnull=False)
    return rows.order_by("-last_attempt_at").values_list("last_result", flat=True).first() or ""


def _last_result_advice(push_settings: PushSettings) -> str:
    result = _last_result(push_settings.id)
    return status_advice(int(result), token=_token_text(push_settings)) if result.isdecimal() else ""


def _token_text(push_settings: PushSettings) -> str:
    """Return what an endpoint has to accept in the token of a push."""
    if not push_settings.service_account_email:
        return _("No token was sent, because the subscription has no service account.")
    values = {"audience": push_settings.audience, "email": push_settings.service_account_email}
    return _("The token that was sent has the audience %(audience)s and the email %(email)s.") % values
