"""How to push for a subscription: everything about a request that is the same for all its messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from deliveries.push.httpclient import Endpoint, PushClient
from deliveries.rules.outcome import Reason
from pushhub.common.errors import PushHubError
from subscriptions.identity.agents import accounts_signable
from subscriptions.identity.tokens import IdToken, id_token_mint
from subscriptions.selectors import PushSettings, push_settings

logger = logging.getLogger(__name__)

#: Settings are read again after that long, even when the word that they changed got lost.
PLAN_SECONDS = 60.0
#: Who may sign is looked at again soon, as nobody tells a worker: a revoked grant must stop pushes within seconds
#: though the token at hand is good for an hour, and somebody may be granting the role that was wanting.
SIGNED_PLAN_SECONDS = 5.0
#: A token is replaced before it ends, so that the receiver never sees an expired one.
TOKEN_MARGIN_SECONDS = 300.0
#: Tokens kept for reuse; audiences are the users' to choose, so their number is bounded.
MAX_TOKENS = 20_000
JSON_HEADER = ("Content-Type", "application/json")


@dataclass(frozen=True, slots=True)
class PushPlan:
    """The plan for one subscription. Without settings the subscription is deleted; with a refusal it cannot push."""

    settings: PushSettings | None
    #: With the headers that all pushes of the subscription carry; None where nothing is pushed.
    endpoint: Endpoint | None
    #: On the clock of `time.monotonic`.
    valid_until: float
    #: The reason that every attempt is nacked with, or nothing.
    refusal: str = ""


class PlanBook:
    """Plans by subscription id. Read from the engine's thread, written by the steward; a dict's items are atomic."""

    def __init__(
        self,
        client: PushClient,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._plans: dict[int, PushPlan] = {}
        self._tokens: dict[tuple[str, str], IdToken] = {}
        self._monotonic = monotonic
        self._time = wall_clock

    def get(self, subscription_id: int, *, now: float) -> PushPlan | None:
        """The plan, or None when it must be made first. `now` is on the clock of `time.monotonic`."""
        plan = self._plans.get(subscription_id)
        return plan if plan is not None and plan.valid_until > now else None

    def forget(self, subscription_ids: Iterable[int]) -> None:
        for subscription_id in subscription_ids:
            self._plans.pop(subscription_id, None)

    def forget_all(self) -> None:
        self._plans = {}

    def load(self, subscription_ids: Iterable[int]) -> None:
        """Make plans from the database; may raise its errors. Two queries, and a signature a new token."""
        wanted = set(subscription_ids)
        if not wanted:
            return
        found = push_settings(wanted)
        usable = accounts_signable({settings.service_account_email for settings in found.values()})
        for subscription_id in wanted:
            self._plans[subscription_id] = self._make(found.get(subscription_id), usable)

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
            return PushPlan(settings, self._client.prepare(settings.endpoint, headers=headers), valid_until, refusal)
        except ValueError:
            return PushPlan(settings, None, valid_until, refusal=Reason.INVALID_ENDPOINT)

    def _token(self, settings: PushSettings, usable: Container[str]) -> IdToken | None:
        """The token for a subscription, reused until it nears its end; None when the account may not have one."""
        key = (settings.service_account_email, settings.audience)
        kept = self._tokens.get(key)
        if kept is not None and key[0] in usable and kept.expires_at - self._time() > TOKEN_MARGIN_SECONDS:
            return kept
        self._tokens.pop(key, None)
        if len(self._tokens) >= MAX_TOKENS:
            self._tokens.clear()
        try:
            token = self._tokens[key] = id_token_mint(email=key[0], audience=key[1])
        except PushHubError as denied:
            logger.warning("no token for subscription %s: %s", settings.name, denied.message)
            return None
        return token
