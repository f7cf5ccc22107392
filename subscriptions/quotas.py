"""Quotas of projects: token buckets in Redis, which all processes share. Off unless `PUSHHUB_QUOTAS` is on.

A request is charged to the project of its topic or subscription. While Redis is down, nothing is charged and nothing is
refused, because a quota must never stop publishing.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import redis
from django.conf import settings
from redis.commands.core import Script

from pushhub.common import names
from pushhub.common.decimals import read_decimal
from pushhub.common.errors import ResourceExhausted, error_info
from pushhub.common.redisclient import connect_to_redis, shared_url
from pushhub.common.rows import row_or_none
from subscriptions.models import Project

logger = logging.getLogger(__name__)

SERVICE = "pubsub.googleapis.com"
PUBSUB = "google.pubsub.v1."
#: The methods that move messages. They have their own quotas, or none, and the audit log leaves them out.
DATA_METHODS = frozenset(
    {
        PUBSUB + "Publisher.Publish",
        *(PUBSUB + f"Subscriber.{name}" for name in ("Pull", "StreamingPull", "Acknowledge", "ModifyAckDeadline")),
    }
)
UNIT_BYTES = 1000
#: The pause before the next attempt after Redis failed.
PAUSE_SECONDS = 5.0
TIMEOUT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Quota:
    """One quota, with Cloud Pub/Sub's names for it."""

    metric: str
    #: As an error's text names it.
    metric_name: str
    setting: str
    #: How the names of its limit go on after those of the metric.
    limit: str = "PerMinutePerProject"
    limit_name: str = "per minute"
    seconds: int = 60


REGIONAL = ("PerMinutePerProjectPerRegion", "per minute per region")
PER_KEY = ("PerSecondPerOrderingKey", "per second", 1)
ADMINISTRATOR = Quota("administrator", "Administrator operations", "QUOTA_ADMINISTRATOR_PER_MINUTE")
PUBLISH_REQUESTS = Quota("publishrequests", "Publish requests", "QUOTA_PUBLISH_REQUESTS_PER_MINUTE")
PUBLISHER = Quota("regionalpublisher", "Regional publisher throughput, kB", "QUOTA_PUBLISHER_KB_PER_MINUTE", *REGIONAL)
SUBSCRIBER = Quota(
    "regionalsubscriber", "Regional subscriber throughput, kB", "QUOTA_SUBSCRIBER_KB_PER_MINUTE", *REGIONAL
)
ORDERING_KEY = Quota(
    "orderingkeypublisher", "Publisher throughput of an ordering key, kB", "QUOTA_ORDERING_KEY_KB_PER_SECOND", *PER_KEY
)


@dataclass(frozen=True, slots=True)
class Charge:
    """How much of a quota a request uses. `owner` distinguishes the buckets of a quota."""

    quota: Quota
    owner: str
    cost: int

    @classmethod
    def of(cls, quota: Quota, project: str, cost: int) -> Charge:
        """Return a charge to a project's own bucket, which some quotas have in each region."""
        return cls(quota, f"{project}:{settings.REGION}" if quota in (PUBLISHER, SUBSCRIBER) else project, cost)


def charge_administration(method: str, names: Mapping[str, str]) -> None:
    """Charge a permitted method of the control plane to the project of the first of `names`."""
    if not settings.QUOTAS or not method.startswith(PUBSUB) or method in DATA_METHODS:
        return
    kind, _, rest = next(iter(names.values()), "").partition("/")
    if kind == "projects":
        project = _project_id(rest.partition("/")[0])
        _charge(project, [Charge.of(ADMINISTRATOR, project, 1)])


def charge_publish(*, topic: str, project: str, requests: Iterable[tuple[str, int]]) -> None:
    """Charge publish requests to a topic of `project`: all, or none. `topic` is its full name.

    Of each request there are the ordering key and the size of all messages.
    """
    if not settings.QUOTAS:
        return
    by_key: Counter[str] = Counter()
    count = 0
    for ordering_key, size in requests:
        by_key[ordering_key] += _units(size)
        count += 1
    charges = [Charge.of(PUBLISH_REQUESTS, project, count), Charge.of(PUBLISHER, project, by_key.total())]
    del by_key[""]
    for ordering_key, units in by_key.items():
        digest = hashlib.blake2s(f"{topic} {ordering_key}".encode(), digest_size=16).hexdigest()
        charges.append(Charge(ORDERING_KEY, digest, units))
    _charge(project, charges)


def check_pull(*, project: str) -> None:
    """Refuse a pull after the project's subscribers have exceeded their quota."""
    if settings.QUOTAS:
        _charge(project, [Charge.of(SUBSCRIBER, project, 1)])


def used_up(client: redis.Redis, quotas: Sequence[Quota], *, project: str) -> list[Quota]:
    """Return those of these quotas of a project that would refuse the smallest request now, in one round trip.

    May raise redis.RedisError.
    """
    if not settings.QUOTAS:
        return []
    pipe = client.pipeline(transaction=False)
    for quota in quotas:
        pipe.hmget(_key(Charge.of(quota, project, 1)), "b", "bt")
    return [quota for quota, bucket in zip(quotas, pipe.execute(), strict=True) if _is_empty(quota, *bucket)]


def _is_empty(quota: Quota, tokens: bytes | None, at_ms: bytes | None) -> bool:
    """Return whether a bucket has less than a token. Nothing was taken yet from one that doesn't exist."""
    limit = int(getattr(settings, quota.setting))
    if not limit or tokens is None or at_ms is None:
        return False
    return float(tokens) + (time.time() - float(at_ms) / 1000) * limit / quota.seconds < 1


def charge_pull(*, project: str, size: int) -> None:
    """Charge the `size` bytes of messages that a pull returns, in addition to what `check_pull` charged."""
    if settings.QUOTAS and size > UNIT_BYTES:
        _charge(project, [Charge.of(SUBSCRIBER, project, _units(size) - 1)], forced=True)


def check_streams(*, project: str, count: int) -> None:
    """Refuse a streaming pull of a project if that makes `count`, more than its quota. For when quotas are on."""
    most = settings.QUOTA_STREAMING_PULL_CONNECTIONS
    if 0 < most < count:
        raise ResourceExhausted(
            f'You have exceeded your StreamingPull connection quota (project="{project}"). Refer to '
            "https://cloud.google.com/pubsub/quotas for more information."
        )


def _units(size: int) -> int:
    return max(-(-size // UNIT_BYTES), 1)


def _project_id(segment: str) -> str:
    """Return the project's id. A name may have its number instead, and both share a bucket."""
    number = read_decimal(segment, most=names.LAST_NUMBER)
    if number is None:
        return segment
    return row_or_none(Project.objects.filter(number=number).values_list("project_id", flat=True)) or segment


def _charge(project: str, charges: Sequence[Charge], *, forced: bool = False) -> None:
    limits = [int(getattr(settings, charge.quota.setting)) for charge in charges]
    # A limit of 0 means no limit.
    limited = [(charge, limit) for charge, limit in zip(charges, limits, strict=True) if limit]
    if not limited:
        return
    keys = [_key(charge) for charge, _ in limited]
    args: list[str | float] = ["1" if forced else ""]
    for charge, limit in limited:
        args += [limit / charge.quota.seconds, limit, charge.cost]
    refused = _buckets(shared_url()).take(keys, args)
    if refused:
        quota, limit = limited[refused - 1][0].quota, limited[refused - 1][1]
        raise _exceeded(project, quota, limit)


def _key(charge: Charge) -> str:
    return f"ph:quota:{charge.quota.metric}:{charge.owner}"


class Buckets:
    """The token buckets in one Redis."""

    def __init__(self, url: str) -> None:
        # A publisher waits for the result, so a Redis that hangs must cost little time.
        client = connect_to_redis(url, seconds=TIMEOUT_SECONDS)
        self._script = Script(client, Path(__file__).with_name("quota.lua").read_text(encoding="utf-8"))
        self._not_before = 0.0

    def take(self, keys: Sequence[str], args: Sequence[str | float]) -> int:
        """Take the tokens with quota.lua. Returns 0, or the number of the bucket that has too few."""
        if time.monotonic() < self._not_before:
            return 0
        try:
            return int(self._script(keys=list(keys), args=list(args)))
        except redis.RedisError as error:
            logger.warning("quotas are not enforced", exc_info=error)
            self._not_before = time.monotonic() + PAUSE_SECONDS
            return 0


@cache
def _buckets(url: str) -> Buckets:
    return Buckets(url)


def _exceeded(project: str, quota: Quota, limit: int) -> ResourceExhausted:
    number = row_or_none(Project.objects.filter(project_id=project).values_list("number", flat=True)) or project
    return ResourceExhausted(
        f"Quota exceeded for quota metric '{quota.metric_name}' and limit '{quota.metric_name} {quota.limit_name}' "
        f"of service '{SERVICE}' for consumer 'project_number:{number}'.",
        details=error_info(
            "RATE_LIMIT_EXCEEDED",
            metadata={
                "consumer": f"projects/{number}",
                "quota_limit": quota.metric + quota.limit,
                "quota_limit_value": str(limit),
                "quota_location": settings.REGION,
                "quota_metric": f"{SERVICE}/{quota.metric}",
                "service": SERVICE,
            },
        ),
    )
