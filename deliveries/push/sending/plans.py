"""Push plans: everything about a request that is the same for all messages of a subscription."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deliveries.push.sending.httpclient import Client, Endpoint
from deliveries.rules.outcome import Reason
from pushhub.common.errors import PushHubError
from pushhub.common.repeats import Repeats
from subscriptions.identity.agents import accounts_signable
from subscriptions.identity.tokens import IdToken, mint_id_token
from subscriptions.selectors import PushSettings, push_settings
from subscriptions.transforms.functions import Function

logger = logging.getLogger(__name__)

#: Settings are read again after this time, in case the notice of a change got lost.
PLAN_SECONDS = 60.0
#: The permission to sign is checked again soon, because workers are not notified: a revoked grant must stop pushes
#: within seconds although the token is valid for an hour, and a missing role may be granted at any time.
RIGHT_SECONDS = 5.0
#: A plan in use is made anew so long before it ends: its messages would wait behind those of all other plans otherwise.
RENEWED_SECONDS = 2.0
#: A token is replaced this long before it expires, so that the receiver never sees an expired one.
TOKEN_MARGIN_SECONDS = 300.0
#: After a larger step of the clock no token is used again: it may have expired, or receivers may find it too new.
CLOCK_STEP_SECONDS = 5.0
#: Tokens kept for reuse. Users choose the audiences, so the number of tokens must be bounded.
MAX_TOKENS = 20_000
#: Names kept, also of subscriptions that have been deleted.
MAX_NAMES = 100_000
JSON_HEADER = ("Content-Type", "application/json")


@dataclass(slots=True)
class Right:
    """That an account may be signed for. All plans that push as the account share it."""

    #: Of the account. Its email may become that of another one.
    unique_id: str
    #: On the clock of `time.monotonic`; 0 once it was revoked.
    valid_until: float


@dataclass(frozen=True, slots=True)
class PushPlan:
    """The plan for one subscription. Without settings the subscription is deleted; with a refusal it cannot push."""

    settings: PushSettings | None
    #: The endpoint with the headers of all pushes; None if nothing is pushed.
    endpoint: Endpoint | None
    #: When the settings are read again, on the clock of `time.monotonic`.
    valid_until: float
    right: Right | None = None
    #: The reason with which every attempt is nacked, or "".
    refusal: str = ""
    #: The message transforms, which are applied before each push.
    functions: Sequence[Function] = ()

    @property
    def ends_at(self) -> float:
        return self.valid_until if self.right is None else min(self.valid_until, self.right.valid_until)


class PlanBook:
    """Plans by subscription id. The engine's thread reads them, the preparer writes them; dict items are atomic."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._plans: dict[int, PushPlan] = {}
        #: While plans are being made: the subscriptions whose settings have changed since they were read.
        self._changed: set[int] | None = None
        #: Subscriptions whose plans are made anew before they end.
        self._renewing: set[int] = set()
        #: The rights of accounts.
        self._rights: dict[str, Right] = {}
        #: By unique id of the account, "" without a right, and by email and audience.
        self._tokens: dict[tuple[str, str, str], IdToken] = {}
        #: The last known name of each subscription, deleted or not.
        self._names: dict[int, str] = {}
        self._monotonic, self._time = time.monotonic, time.time
        self._clock_ahead = self._time() - self._monotonic()
        self._denials = Repeats()

    def get(self, subscription_id: int, *, now: float) -> PushPlan | None:
        """Return the plan, or None if it must be made first. `now` is on the clock of `time.monotonic`."""
        plan = self._plans.get(subscription_id)
        return plan if plan is not None and plan.ends_at > now else None

    def is_ending(self, subscription_id: int, plan: PushPlan, *, now: float) -> bool:
        """Return once whether a plan ends soon."""
        if plan.ends_at - now > RENEWED_SECONDS or subscription_id in self._renewing:
            return False
        self._renewing.add(subscription_id)
        return True

    def name_of(self, subscription_id: int) -> str:
        """Return the last known name of a subscription, deleted or not, or else its id in words."""
        return self._names.get(subscription_id) or f"(subscription {subscription_id})"

    def forget(self, subscription_ids: Iterable[int]) -> None:
        """Forget plans, also those that are being made from the settings before the change."""
        changed = self._changed
        for subscription_id in subscription_ids:
            if changed is not None:
                changed.add(subscription_id)
            self._plans.pop(subscription_id, None)

    def forget_all(self) -> None:
        self._plans = {}

    def load(self, subscription_ids: Iterable[int]) -> None:
        """Make plans from the database, or renew the rights of those whose settings are good for a while.

        That takes a query for all settings, a query for all accounts, and a signature per new token. It may raise their
        errors. A subscription that changes meanwhile has no plan afterwards. Only one thread may load.
        """
        self._follow_clock()
        now = self._monotonic()
        ids = set(subscription_ids)
        plans = [plan for plan in map(self._plans.get, ids) if plan is not None and plan.right is not None]
        self._renew_rights({plan.settings.service_account_email for plan in plans if plan.settings}, now=now)
        self._make_all({id_ for id_ in ids if self.get(id_, now=now + RENEWED_SECONDS) is None})
        self._renewing -= ids

    def _follow_clock(self) -> None:
        """Forget everything with a token if the clock was set, or the machine was suspended."""
        step = self._time() - self._monotonic() - self._clock_ahead
        if abs(step) > CLOCK_STEP_SECONDS:
            self._clock_ahead += step
            self._tokens.clear()
            self.forget_all()

    def _renew_rights(self, emails: Iterable[str], *, now: float) -> None:
        """Look up accounts whose rights have ended or end soon."""
        rights = self._rights
        asked = {email for email in emails if email not in rights or rights[email].valid_until - now <= RENEWED_SECONDS}
        usable = accounts_signable(asked - {""})
        for email in asked:
            unique_id = usable.get(email)
            if email in rights and rights[email].unique_id != unique_id:
                rights.pop(email).valid_until = 0
            if unique_id is not None:
                rights.setdefault(email, Right(unique_id, 0)).valid_until = now + RIGHT_SECONDS

    def _make_all(self, ids: set[int]) -> None:
        if not ids:
            return
        # After `forget_all` this dict is no longer used.
        plans = self._plans
        changed = self._changed = set()
        now = self._monotonic()
        settings_by_id = push_settings(ids)
        for subscription_id, settings in settings_by_id.items():
            self._names.pop(subscription_id, None)  # the name goes to the end, the last to be dropped
            self._names[subscription_id] = settings.name
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        self._renew_rights({settings.service_account_email for settings in settings_by_id.values()}, now=now)
        for subscription_id in ids:
            plans[subscription_id] = self._make(settings_by_id.get(subscription_id), now=now)
            # What `forget` notes after this line, it takes out of `plans` itself.
            if subscription_id in changed:
                plans.pop(subscription_id, None)
        self._changed = None

    def _make(self, settings: PushSettings | None, *, now: float) -> PushPlan:
        if settings is None or not settings.is_push:
            return PushPlan(settings, None, now + PLAN_SECONDS)
        headers = [] if settings.no_wrapper else [JSON_HEADER]
        right, valid_until, refusal = None, now + PLAN_SECONDS, ""
        if settings.service_account_email:
            right = self._rights.get(settings.service_account_email)
            token = self._token(settings, right)
            if right is None:
                valid_until = now + RIGHT_SECONDS
            if token is None:
                refusal = Reason.TOKEN_DENIED
            else:
                headers.append(("Authorization", f"Bearer {token.token}"))
        try:
            endpoint = self._client.prepare(settings.endpoint, headers=headers)
        except ValueError:
            return PushPlan(settings, None, valid_until, right, refusal=Reason.INVALID_ENDPOINT)
        return PushPlan(settings, endpoint, valid_until, right, refusal, () if refusal else settings.transforms)

    def _token(self, settings: PushSettings, right: Right | None) -> IdToken | None:
        """Return the token of a subscription, reused until shortly before it expires; None if it may not have one."""
        email, audience = settings.service_account_email, settings.audience
        key = (right.unique_id if right is not None else "", email, audience)
        cached = self._tokens.get(key)
        if cached is not None and right is not None and cached.expires_at - self._time() > TOKEN_MARGIN_SECONDS:
            return cached
        self._tokens.pop(key, None)
        if len(self._tokens) >= MAX_TOKENS:
            self._tokens.clear()
        try:
            token = self._tokens[key] = mint_id_token(email=email, audience=audience)
        except PushHubError as denied:
            if count := self._denials.count((settings.id, denied.message)):
                often = f" ({count} times in the last minute or longer)" if count > 1 else ""
                logger.warning("no token for subscription %s: %s%s", settings.name, denied.message, often)
            return None
        return token
