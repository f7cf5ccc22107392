"""Says why the messages of a subscription are not delivered, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.conf import settings
from django.utils.translation import gettext as _

from deliveries.diagnosis.endpoint import answer_step, endpoint_steps
from deliveries.diagnosis.steps import Diagnosis, Step, StepName, StepStatus, failed, ok, skipped, warning
from deliveries.diagnosis.transforms import transforms_step
from deliveries.inspection import probe
from deliveries.inspection.conditions import Condition
from deliveries.inspection.lanes import LaneView
from deliveries.inspection.notices import Finding, is_wrong
from deliveries.inspection.status import SubscriptionStatus, subscription_status
from deliveries.inspection.texts import result_advice, result_text
from deliveries.inspection.words import findings_of
from deliveries.models import Delivery, Message
from deliveries.push.sending.httpclient import client_options
from deliveries.rules.outcome import Reason
from deliveries.rules.payload import parse_attributes
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.export.readiness import push_workers
from pushhub.common.clock import duration_text, utcnow
from pushhub.common.errors import PushHubError
from pushhub.common.principals import Principal
from pushhub.common.tenantpool import step_aside_or_refuse
from subscriptions.iam import access
from subscriptions.iam.roles import ACT_AS
from subscriptions.identity.tokens import TokenDenied, mint_id_token
from subscriptions.models import ServiceAccount, Subscription
from subscriptions.resources.filters import matcher
from subscriptions.selectors import PushSettings, push_settings_of

#: The newest messages of the topic that a filter is tried on.
FILTERED_MESSAGES = 100
#: So long the last ack proves that the endpoint answers.
PROVEN_MS = 60_000
#: Attribute of a probe, for the endpoint to tell it from messages.
PROBE_ATTRIBUTE = "pushhub-probe"
ORDER = tuple(StepName)
#: Steps that a pull subscription has not, unless Redis fails, of which the workers' step tells.
OF_PUSHES = frozenset(
    {
        *(StepName.URL, StepName.TOKEN, StepName.WORKER, StepName.REGION, StepName.ORDERING, StepName.NAME),
        *(StepName.GUARD, StepName.CONNECTION, StepName.CERTIFICATE, StepName.ANSWER),
    }
)
#: Conditions that leave nothing to check.
ENDS = frozenset({Condition.DETACHED, Condition.PAUSED})
#: The step that a condition fails; the others fail the flow.
STEP_OF = {
    **dict.fromkeys((*ENDS, Condition.TOPIC_DELETED, Condition.EXPIRING), StepName.SUBSCRIPTION),
    Condition.REDIS_DOWN: StepName.WORKER,
    **dict.fromkeys((Condition.NO_WORKER, Condition.TAKEN_OVER), StepName.REGION),
    Condition.BLOCKED: StepName.ORDERING,
    Condition.DATABASE_DOWN: StepName.DATABASE,
    Condition.NO_MAINTENANCE: StepName.MAINTENANCE,
    **dict.fromkeys(
        (Condition.NO_DEAD_LETTER_TOPIC, Condition.DEAD_LETTERS_DENIED, Condition.DEAD_LETTERS_BANNED),
        StepName.DEAD_LETTERS,
    ),
}


def diagnose_subscription(subscription: Subscription, *, caller: Principal, send_probe: bool = False) -> Diagnosis:
    """Check each step of a push. `send_probe` sends one message without data to the endpoint.

    Raises ResourceExhausted while too many others wait for something.
    """
    step_aside_or_refuse()
    status = subscription_status(subscription)
    steps = {step.name: step for step in _steps(subscription, status, caller, send_probe=send_probe)}
    order = ORDER if subscription.push_endpoint else [name for name in ORDER if name not in OF_PUSHES or name in steps]
    reached = [steps.get(name) or skipped(name, _("An earlier step fails.")) for name in order]
    return Diagnosis(subscription.name, reached, status.paused)


def _steps(
    subscription: Subscription, status: SubscriptionStatus, caller: Principal, *, send_probe: bool
) -> Iterator[Step]:
    """Yield the steps; what the endpoint needs for a push comes first, and the first failure there ends its part."""
    findings = findings_of(status)
    steps = dict(_found(findings))
    yield steps.get(StepName.SUBSCRIPTION) or ok(StepName.SUBSCRIPTION, _("It is a subscription of an existing topic."))
    if findings[0].condition in ENDS:
        return
    push_settings = push_settings_of(subscription.pk)
    yield steps.get(StepName.DATABASE) or ok(StepName.DATABASE, _("The database takes writes."))
    yield steps.get(StepName.DEAD_LETTERS) or ok(StepName.DEAD_LETTERS, _("No dead letter is held up."))
    yield _filter(subscription, status)
    yield transforms_step(subscription)
    if StepName.WORKER in steps:
        yield steps[StepName.WORKER]
    else:
        if subscription.push_endpoint:
            yield _workers()
        yield steps.get(StepName.MAINTENANCE) or ok(
            StepName.MAINTENANCE, _("A maintenance worker gives signs of life.")
        )
        if StepName.FLOW in steps:
            yield steps[StepName.FLOW]
        elif findings[0].condition not in STEP_OF:
            is_seen = findings[0].condition is not Condition.ELSEWHERE
            yield (ok if is_seen else skipped)(StepName.FLOW, findings[0].sentence)
    if push_settings is None or not push_settings.endpoint:
        return
    if StepName.WORKER not in steps:
        yield steps.get(StepName.REGION) or _region(status.lanes)
        nobody = _("No message of an ordering key that is refused again and again was found.")
        yield steps.get(StepName.ORDERING) or ok(StepName.ORDERING, nobody)
    yield from _outside(subscription, push_settings, caller, status.lanes, send_probe=send_probe)


def _found(findings: Sequence[Finding]) -> Iterator[tuple[StepName, Step]]:
    """Yield the steps that the status of the subscription fails, those of notices first."""
    for finding in reversed(findings):
        name = STEP_OF.get(finding.condition, StepName.FLOW)
        if is_wrong(finding.level):
            is_end = finding.condition in ENDS or name in (StepName.WORKER, StepName.DATABASE)
            status = StepStatus.FAILED if is_end else StepStatus.WARNING
            yield name, Step(name, status, finding.sentence, finding.remedy, message_id=finding.message_id)


def _outside(
    subscription: Subscription,
    push_settings: PushSettings,
    caller: Principal,
    lanes: Sequence[LaneView],
    *,
    send_probe: bool,
) -> Iterator[Step]:
    """Yield what is to be checked outside PushHub."""
    for step in endpoint_steps(push_settings.endpoint, client_options()):
        yield step
        if step.status == StepStatus.FAILED:
            return
        if step.name == StepName.URL:
            token = _token(push_settings, caller)
            yield token
    if send_probe and token.status != StepStatus.FAILED:
        result = probe.send_probe(subscription, data=b"", attribute=PROBE_ATTRIBUTE)
        yield answer_step(result, token=_token_text(push_settings))
    else:
        yield _last_answer(push_settings, lanes)


def _workers() -> Step:
    """Check that the push workers live and get their jobs done. Redis has just answered."""
    workers = push_workers(asker="page")
    if workers.status == Status.UNAVAILABLE:
        return failed(
            StepName.WORKER,
            _("No push worker gives a sign of life."),
            _("Start one, or look at the log of those there are."),
        )
    if workers.status == Status.DEGRADED:
        return warning(
            StepName.WORKER,
            _("A push worker has had a job for %(age)d s, such as reading a backlog from the database.")
            % {"age": workers.figures["oldest_job_seconds"]},
            _("Look at the workers' logs and at the load of the database."),
        )
    return ok(
        StepName.WORKER, _("Push workers that give signs of life: %(count)d.") % {"count": workers.figures["workers"]}
    )


def _region(lanes: Sequence[LaneView]) -> Step:
    elsewhere = [lane.region for lane in lanes if lane.is_elsewhere]
    if elsewhere:
        text = _("Only the regions that hold them know about %(regions)s.") % {"regions": ", ".join(elsewhere)}
        return skipped(StepName.REGION, text)
    return ok(StepName.REGION, _("Every region with messages has a push worker."))


def _filter(subscription: Subscription, status: SubscriptionStatus) -> Step:
    """Try the filter on the messages that are stored. Those that it matched may have been deleted after their acks."""
    if not subscription.filter:
        return ok(StepName.FILTER, _("It has no filter."))
    is_match = matcher(subscription.filter)
    rows = Message.objects.filter(topic=subscription.topic_id).order_by("-pk").values_list("attributes", flat=True)
    newest = [parse_attributes(attributes) for attributes in rows[:FILTERED_MESSAGES]]
    matches = sum(map(is_match, newest))
    words = {"matches": matches, "count": len(newest)}
    text = _("Messages that the filter matches: %(matches)d of the %(count)d newest that the topic has stored.") % words
    has_matched = status.undelivered or (status.outcomes is not None and status.outcomes.acknowledged)
    if newest and not matches and not has_matched:
        return warning(StepName.FILTER, text, str(Condition.FILTERED.remedy))
    return ok(StepName.FILTER, text)


def _token(push_settings: PushSettings, caller: Principal) -> Step:
    """Check the account, the service agent and the caller's actAs, and mint the token."""
    email = push_settings.service_account_email
    if not email:
        return ok(StepName.TOKEN, _("Pushes carry no token."))
    try:
        mint_id_token(email=email, audience=push_settings.audience)
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
        return failed(StepName.TOKEN, message % {"email": email}, advice, result=Reason.TOKEN_DENIED)
    except PushHubError as error:
        message = _("The token cannot be signed.")
        return failed(StepName.TOKEN, message, _(error.message), result=Reason.TOKEN_DENIED)
    account = ServiceAccount.objects.get(email=email)
    if not access.allowed(caller, ACT_AS, account):
        message = _("The token can be minted. You may not change the push settings: that needs %(permission)s.")
        return ok(StepName.TOKEN, message % {"permission": ACT_AS})
    return ok(StepName.TOKEN, _("The token can be minted."))


def _last_answer(push_settings: PushSettings, lanes: Sequence[LaneView]) -> Step:
    """Tell of the last nack among the messages that wait, or of the last ack, which is a proof for a minute."""
    rows = Delivery.objects.filter(subscription_id=push_settings.id, last_attempt_at__isnull=False)
    last = rows.exclude(last_result="").order_by("-last_attempt_at").only("last_result", "last_attempt_at").first()
    if last is None or last.last_attempt_at is None:
        acks_ms_ago = [lane.acked_ms_ago for lane in lanes if lane.acked_ms_ago is not None]
        if not acks_ms_ago:
            return skipped(StepName.ANSWER, _("No probe was asked for, and no waiting message was nacked."))
        acked = _("The endpoint acknowledged a push %(ago)s ago.") % {"ago": duration_text(min(acks_ms_ago))}
        return (ok if min(acks_ms_ago) < PROVEN_MS else skipped)(StepName.ANSWER, acked)
    ago = duration_text((utcnow() - last.last_attempt_at).total_seconds() * 1000)
    return warning(
        StepName.ANSWER,
        _("The last push that was nacked ended with %(result)s, %(ago)s ago.")
        % {"result": result_text(last.last_result), "ago": ago},
        result_advice(last.last_result, token=_token_text(push_settings)),
    )


def _token_text(push_settings: PushSettings) -> str:
    """Return what an endpoint has to accept in the token of a push."""
    if not push_settings.service_account_email:
        return _("No token was sent, because the subscription has no service account.")
    email = push_settings.service_account_email
    values = {"issuer": settings.ISSUER, "audience": push_settings.audience, "email": email}
    text = _("The token that was sent has the issuer %(issuer)s, the audience %(audience)s and the email %(email)s.")
    return text % values
