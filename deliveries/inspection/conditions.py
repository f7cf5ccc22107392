"""Everything that can be so of a subscription: how bad it is, its short name, and what to do about it.

The console's sentence, its lists, the overview and the diagnosis take their words and colours from here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from django.utils.translation import gettext_lazy as _


class Level(StrEnum):
    """How the console marks a condition. UNKNOWN is for what was not tried: it is neither green nor wrong."""

    GOOD = "good"
    UNKNOWN = ""
    WARN = "warn"
    BAD = "bad"


_START_A_WORKER = _("Start a push worker with PUSHHUB_REGION=%(region)s.")
_BY_ITSELF = _("It ends by itself when pushes are acknowledged.")


class Condition(StrEnum):
    """Why messages of a subscription wait, or why there are none; the most important reason first."""

    level: Level
    #: For lists.
    label: Any
    #: What to do about it; "" where nothing is to be done.
    remedy: Any

    def __new__(cls, value: str, level: Level, label: Any, remedy: Any = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.level, member.label, member.remedy = value, level, label, remedy
        return member

    DETACHED = ("detached", Level.BAD, _("detached"), _("Create a new one: it cannot be attached."))
    REDIS_DOWN = ("redis_down", Level.BAD, _("not known"), _("Start Redis, or look at its log and its memory."))
    PAUSED = ("paused", Level.WARN, _("paused"), _("Resume it."))
    NO_WORKER = ("no_worker", Level.BAD, _("no push worker"), _START_A_WORKER)
    OUTDATED = (
        "outdated",
        Level.WARN,
        _("outdated"),
        _("Wait for the next audit of the maintenance worker, at most a minute; is it running?"),
    )
    BACKING_OFF = ("backing_off", Level.BAD, _("backing off"), _BY_ITSELF)
    SLOWED = ("slowed", Level.WARN, _("slowed"), _BY_ITSELF)
    RETRYING = ("retrying", Level.WARN, _("retrying"), _BY_ITSELF)
    WINDOW_FULL = ("window_full", Level.WARN, _("window full"), _("Answer faster; the window grows with acks."))
    LIMITED = ("limited", Level.WARN, _("limited"), _("Raise the limit, or wait."))
    ELSEWHERE = ("elsewhere", Level.UNKNOWN, _("elsewhere"))
    DELIVERING = ("delivering", Level.GOOD, _("delivering"))
    QUOTA_USED = ("quota_used", Level.WARN, _("quota used up"), _("Send fewer requests, or raise PUSHHUB_%(quota)s."))
    UNPULLED = ("unpulled", Level.WARN, _("nobody pulls"), _("Start a subscriber, or set a push endpoint."))
    PULLED = ("pulled", Level.UNKNOWN, _("pull"))
    LOST = ("lost", Level.WARN, _("lost messages"), _("Look at the dead letters, and at the retention."))
    FILTERED = (
        "filtered",
        Level.WARN,
        _("filtered out"),
        _("Compare its filter and its transforms with the messages; a new filter takes a new subscription."),
    )
    IDLE = ("idle", Level.UNKNOWN, _("idle"))
    # What is said beside one of those above, where QUOTA_USED names another quota too.
    DATABASE_DOWN = (
        "database_down",
        Level.BAD,
        _("no database"),
        _("Look at the log of the database, and at the room on its disk."),
    )
    NO_MAINTENANCE = ("no_maintenance", Level.WARN, _("no maintenance"), _("Start one, or look at its log."))
    TAKEN_OVER = ("taken_over", Level.WARN, _("taken over"), _START_A_WORKER)
    TOPIC_DELETED = ("topic_deleted", Level.WARN, _("topic deleted"), _("Create a subscription of another topic."))
    EXPIRING = ("expiring", Level.WARN, _("expires soon"), _("Use it, or change its expiration policy."))
    BLOCKED = (
        "blocked",
        Level.WARN,
        _("blocked"),
        _("If the message is at fault, dead-letter it or skip it. pushhub messages has a command for each."),
    )
    NO_DEAD_LETTER_TOPIC = (
        "no_dead_letter_topic",
        Level.WARN,
        _("no dead letter topic"),
        _("Set the subscription's dead letter topic again."),
    )
    DEAD_LETTERS_DENIED = (
        "dead_letters_denied",
        Level.WARN,
        _("dead letters denied"),
        _(
            "Grant the project's service agent roles/pubsub.publisher on the dead letter topic and "
            "roles/pubsub.subscriber on the subscription."
        ),
    )
    DEAD_LETTERS_BANNED = (
        "dead_letters_banned",
        Level.WARN,
        _("dead letters banned"),
        _("Allow the region in the topic's message storage policy, or choose another dead letter topic."),
    )


#: Pushes fare well if that share of them is acknowledged.
WELL = 0.9
#: Conditions in which pushes fail, or are not made.
FAILING = frozenset({Condition.BACKING_OFF, Condition.SLOWED, Condition.RETRYING, Condition.NO_WORKER})
#: Conditions of which the endpoint's last answer says best what to do.
ANSWERED = frozenset({Condition.BACKING_OFF, Condition.SLOWED, Condition.RETRYING, Condition.DELIVERING})
#: Conditions in which a message isn't tried although its retry is due.
HELD_BACK = frozenset(
    {Condition.BACKING_OFF, Condition.PAUSED, Condition.NO_WORKER, Condition.REDIS_DOWN, Condition.DETACHED}
)
