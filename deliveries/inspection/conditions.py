"""Everything that can be so of a subscription: how bad it is, its short name, and what to do about it.

The console's sentence, its lists, the overview and the diagnosis take their words and colours from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_lazy as _


class Level(StrEnum):
    """How the console marks a condition. UNKNOWN is for what was not tried: it is neither green nor wrong."""

    GOOD = "good"
    UNKNOWN = ""
    WARN = "warn"
    BAD = "bad"


class Condition(StrEnum):
    """Why messages of a subscription wait, or why there are none; the most important reason first."""

    DETACHED = "detached"
    REDIS_DOWN = "redis_down"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    OUTDATED = "outdated"
    BACKING_OFF = "backing_off"
    SLOWED = "slowed"
    RETRYING = "retrying"
    WINDOW_FULL = "window_full"
    LIMITED = "limited"
    ELSEWHERE = "elsewhere"
    DELIVERING = "delivering"
    QUOTA_USED = "quota_used"
    UNPULLED = "unpulled"
    PULLED = "pulled"
    LOST = "lost"
    FILTERED = "filtered"
    IDLE = "idle"
    # What is said beside one of those above, where QUOTA_USED names another quota too.
    DATABASE_DOWN = "database_down"
    NO_MAINTENANCE = "no_maintenance"
    TAKEN_OVER = "taken_over"
    TOPIC_DELETED = "topic_deleted"
    EXPIRING = "expiring"
    BLOCKED = "blocked"
    NO_DEAD_LETTER_TOPIC = "no_dead_letter_topic"
    DEAD_LETTERS_DENIED = "dead_letters_denied"
    DEAD_LETTERS_BANNED = "dead_letters_banned"


@dataclass(frozen=True, slots=True)
class Kind:
    """What all subscriptions in a condition have in common. `label` is for lists."""

    level: Level
    label: Any
    remedy: Any = ""


_START_A_WORKER = _("Start a push worker with PUSHHUB_REGION=%(region)s.")
_BY_ITSELF = _("It ends by itself when pushes are acknowledged.")
KINDS = {
    Condition.DETACHED: Kind(Level.BAD, _("detached"), _("Create a new one: it cannot be attached.")),
    Condition.REDIS_DOWN: Kind(Level.BAD, _("not known"), _("Start Redis, or look at its log and its memory.")),
    Condition.PAUSED: Kind(Level.WARN, _("paused"), _("Resume it.")),
    Condition.NO_WORKER: Kind(Level.BAD, _("no push worker"), _START_A_WORKER),
    Condition.OUTDATED: Kind(
        Level.WARN,
        _("outdated"),
        _("Wait for the next audit of the maintenance worker, at most a minute; is it running?"),
    ),
    Condition.BACKING_OFF: Kind(Level.BAD, _("backing off"), _BY_ITSELF),
    Condition.SLOWED: Kind(Level.WARN, _("slowed"), _BY_ITSELF),
    Condition.RETRYING: Kind(Level.WARN, _("retrying"), _BY_ITSELF),
    Condition.WINDOW_FULL: Kind(Level.WARN, _("window full"), _("Answer faster; the window grows with acks.")),
    Condition.LIMITED: Kind(Level.WARN, _("limited"), _("Raise the limit, or wait.")),
    Condition.ELSEWHERE: Kind(Level.UNKNOWN, _("elsewhere")),
    Condition.DELIVERING: Kind(Level.GOOD, _("delivering")),
    Condition.QUOTA_USED: Kind(Level.WARN, _("quota used up"), _("Send fewer requests, or raise PUSHHUB_%(quota)s.")),
    Condition.UNPULLED: Kind(Level.WARN, _("nobody pulls"), _("Start a subscriber, or set a push endpoint.")),
    Condition.PULLED: Kind(Level.UNKNOWN, _("pull")),
    Condition.LOST: Kind(Level.WARN, _("lost messages"), _("Look at the dead letters, and at the retention.")),
    Condition.FILTERED: Kind(
        Level.WARN,
        _("filtered out"),
        _("Compare its filter and its transforms with the messages; a new filter takes a new subscription."),
    ),
    Condition.IDLE: Kind(Level.UNKNOWN, _("idle")),
    Condition.DATABASE_DOWN: Kind(
        Level.BAD,
        _("no database"),
        _("Look at the log of the database, and at the room on its disk."),
    ),
    Condition.NO_MAINTENANCE: Kind(Level.WARN, _("no maintenance"), _("Start one, or look at its log.")),
    Condition.TAKEN_OVER: Kind(Level.WARN, _("taken over"), _START_A_WORKER),
    Condition.TOPIC_DELETED: Kind(Level.WARN, _("topic deleted"), _("Create a subscription of another topic.")),
    Condition.EXPIRING: Kind(Level.WARN, _("expires soon"), _("Use it, or change its expiration policy.")),
    Condition.BLOCKED: Kind(
        Level.WARN,
        _("blocked"),
        _("If the message is at fault, dead-letter it or skip it. pushhub messages has a command for each."),
    ),
    Condition.NO_DEAD_LETTER_TOPIC: Kind(
        Level.WARN, _("no dead letter topic"), _("Set the subscription's dead letter topic again.")
    ),
    Condition.DEAD_LETTERS_DENIED: Kind(
        Level.WARN,
        _("dead letters denied"),
        _(
            "Grant the project's service agent roles/pubsub.publisher on the dead letter topic and "
            "roles/pubsub.subscriber on the subscription."
        ),
    ),
    Condition.DEAD_LETTERS_BANNED: Kind(
        Level.WARN,
        _("dead letters banned"),
        _("Allow the region in the topic's message storage policy, or choose another dead letter topic."),
    ),
}
#: Conditions in which pushes fail, or are not made.
FAILING = frozenset({Condition.BACKING_OFF, Condition.SLOWED, Condition.RETRYING, Condition.NO_WORKER})
#: Conditions of which the endpoint's last answer says best what to do.
ANSWERED = frozenset({Condition.BACKING_OFF, Condition.SLOWED, Condition.RETRYING, Condition.DELIVERING})
#: Conditions in which a message isn't tried although its retry is due.
HELD_BACK = frozenset(
    {Condition.BACKING_OFF, Condition.PAUSED, Condition.NO_WORKER, Condition.REDIS_DOWN, Condition.DETACHED}
)
