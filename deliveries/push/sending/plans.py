"""Push plans: everything about a request that is the same for all messages of a subscription."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass

from deliveries.push.sending.httpclient import Client, PreparedEndpoint
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
SIGNED_PLAN_SECONDS = 5.0
#: A plan in use is made anew so long before it ends: its messages would wait behind those of all other plans otherwise.
RENEWED_SECONDS = 2.0
#: A token is replaced this long before it expires, so that the receiver never sees an expired one.
TOKEN_MARGIN_SECONDS = 300.0
#: Tokens kept for reuse. Users choose the audiences, so the number of tokens must be bounded.
MAX_TOKENS = 20_000
#: Names kept, also of subscriptions that have been deleted.
MAX_NAMES = 100_000
JSON_HEADER = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True)
class PushPlan:
    """The plan for one subscription. Without settings the subscription is deleted; with a refusal it cannot push."""

    settings: PushSettings | None
    #: The endpoint with the headers of all pushes; None if nothing is pushed.
    endpoint: PreparedEndpoint | None
    #: On the clock of `time.monotonic`.
    valid_until: float
    #: The reason with which every attempt is nacked, or "".
    refusal: str = ""
    #: The message transforms, which are applied before each push.
    functions: Sequence[Function] = ()


class PlanBook:
    """Plans by subscription id. The engine's thread reads them, the preparer writes them; dict items are atomic."""

    def __init__(
        self,
        client: Client,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._plans: dict[int, PushPlan] = {}
        #: While plans are being made: the subscriptions whose settings have changed since they were read.
        self._changed: set[int] | None = None
        #: Subscriptions whose plans are made anew before they end.
        self._renewing: set[int] = set()
        self._tokens: dict[tuple[str, str], IdToken] = {}
        #: The last known name of each subscription, deleted or not.
        self._names: dict[int, str] = {}
        self._monotonic = monotonic
        self._time = wall_clock
        self._denials = Repeats(monotonic=monotonic)

    def get(self, subscription_id: int, *, now: float) -> PushPlan | None:
        """Return the plan, or None if it must be made first. `now` is on the clock of `time.monotonic`."""
        plan = self._plans.get(subscription_id)
        return plan if plan is not None and plan.valid_until > now else None

    def is_ending(self, subscription_id: int, plan: PushPlan, *, now: float) -> bool:
        """Return once whether a plan ends soon."""
        if plan.valid_until - now > RENEWED_SECONDS or subscription_id in self._renewing:
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
        """Make plans from the database, with two queries and a signature per new token. May raise its errors.

        A subscription that changes meanwhile has no plan afterwards. Only one thread may load.
        """
        ids = set(subscription_ids)
        if not ids:
            return
        # After `forget_all` this dict is no longer used.
        plans = self._plans
        changed = self._changed = set()
        settings_by_id = push_settings(ids)
        for subscription_id, settings in settings_by_id.items():
            self._names.pop(subscription_id, None)  # the name goes to the end, the last to be dropped
            self._names[subscription_id] = settings.name
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        usable = accounts_signable({settings.service_account_email for settings in settings_by_id.values()})
        for subscription_id in ids:
            plans[subscription_id] = self._make(settings_by_id.get(subscription_id), usable)
            # What `forget` notes after this line, it takes out of `plans` itself.
            if subscription_id in changed:
                plans.pop(subscription_id, None)
            self._renewing.discard(subscription_id)
        self._changed = None

    def _make(self, settings: PushSettings | None, usable: Container[str]) -> PushPlan:
        now = self._monotonic()
        if settings is None or not settings.is_push:
            return PushPlan(settings, None, now + PLAN_SECONDS)
        headers = [] if settings.no_wrapper else [JSON_HEADER]
        valid_until, refusal = now + PLAN_SECONDS, ""
        if settings.service_account_email:
            token = self._token(settings, usable)
            valid_until = now + SIGNED_PLAN_SECONDS
            if token is None:
                refusal = Reason.TOKEN_DENIED
            else:
                headers.append(("Authorization", f"Bearer {token.token}"))
        try:
            endpoint = self._client.prepare(settings.endpoint, headers=headers)
            functions = () if refusal else settings.transforms
            return PushPlan(settings, endpoint, valid_until, refusal, functions)
        except ValueError:
            return PushPlan(settings, None, valid_until, refusal=Reason.INVALID_ENDPOINT)

    def _token(self, settings: PushSettings, usable: Container[str]) -> IdToken | None:
        """Return the token of a subscription, reused until shortly before it expires; None if it may not have one."""
        key = (settings.service_account_email, settings.audience)
        cached = self._tokens.get(key)
        if cached is not None and key[0] in usable and cached.expires_at - self._time() > TOKEN_MARGIN_SECONDS:
            return cached
        self._tokens.pop(key, None)
        if len(self._tokens) >= MAX_TOKENS:
            self._tokens.clear()
        try:
            token = self._tokens[key] = mint_id_token(email=key[0], audience=key[1])
        except PushHubError as denied:
            if count := self._denials.count((settings.id, denied.message)):
                often = f" ({count} times in the last minute or longer)" if count > 1 else ""
                logger.warning("no token for subscription %s: %s%s", settings.name, denied.message, often)
            return None
        return token
