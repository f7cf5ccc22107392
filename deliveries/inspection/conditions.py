"""Everything that can be so of a subscription: how bad it is, its short name, and what to do about it.

The console's sentence, its lists, the overview and the diagnosis take their words and colours from here.
"""

from __future__ import annotations

from enum import Enum, StrEnum
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


class Condition(Enum):
    """Why messages of a subscription wait, or why there are none; the most important reason first.

    The value is the rank: that of the texts would look up their translations before Django is set up.
    """

    level: Level
    #: For lists.
    label: Any
    #: What to do about it, or "".
    remedy: Any

    def __new__(cls, level: Level, label: Any, remedy: Any = "") -> Self:
        member = object.__new__(cls)
        member._value_, member.level, member.label, member.remedy = len(cls.__members__), level, label, remedy
        return member

    DETACHED = (Level.BAD, _("detached"), _("Create a new one: it cannot be attached."))
    REDIS_DOWN = (Level.BAD, _("not known"), _("Start Redis, or look at its log and its memory."))
    PAUSED = (Level.WARN, _("paused"), _("Resume it."))
    NO_WORKER = (Level.BAD, _("no push worker"), _START_A_WORKER)
    OUTDATED = (
        Level.WARN,
        _("outdated"),
        _("Wait for the next audit of the maintenance worker, at most a minute; is it running?"),
    )
    BACKING_OFF = (Level.BAD, _("backing off"), _BY_ITSELF)
    SLOWED = (Level.WARN, _("slowed"), _BY_ITSELF)
    RETRYING = (Level.WARN, _("retrying"), _BY_ITSELF)
    WINDOW_FULL = (Level.WARN, _("window full"), _("Answer faster; the window grows with acks."))
    LIMITED = (Level.WARN, _("limited"), _("Raise the limit, or wait."))
    ELSEWHERE = (Level.UNKNOWN, _("elsewhere"))
    DELIVERING = (Level.GOOD, _("delivering"))
    QUOTA_USED = (Level.WARN, _("quota used up"), _("Send fewer requests, or raise PUSHHUB_%(quota)s."))
    UNPULLED = (Level.WARN, _("nobody pulls"), _("Start a subscriber, or set a push endpoint."))
    PULLED = (Level.UNKNOWN, _("pull"))
    LOST = (Level.WARN, _("lost messages"), _("Look at the dead letters, and at the retention."))
    FILTERED = (
        Level.WARN,
        _("filtered out"),
        _("Compare its filter and its transforms with the messages; a new filter takes a new subscription."),
    )
    IDLE = (Level.UNKNOWN, _("idle"))
    # What is said beside one of those above, where QUOTA_USED names another quota too.
    DATABASE_DOWN = (Level.BAD, _("no database"), _("Look at the log of the database, and at the room on its disk."))
    NO_MAINTENANCE = (Level.WARN, _("no maintenance"), _("Start one, or look at its log."))
    TAKEN_OVER = (Level.WARN, _("taken over"), _START_A_WORKER)
    TOPIC_DELETED = (Level.WARN, _("topic deleted"), _("Create a subscription of another topic."))
    EXPIRING = (Level.WARN, _("expires soon"), _("Use it, or change its expiration policy."))
    BLOCKED = (
        Level.WARN,
        _("blocked"),
        _("If the message is at fault, dead-letter it or skip it. pushhub messages has a command for each."),
    )
    NO_DEAD_LETTER_TOPIC = (Level.WARN, _("no dead letter topic"), _("Set the subscription's dead letter topic again."))
    DEAD_LETTERS_DENIED = (
        Level.WARN,
        _("dead letters denied"),
        _(
            "Grant the project's service agent roles/pubsub.publisher on the dead letter topic and "
            "roles/pubsub.subscriber on the subscription."
        ),
    )
    DEAD_LETTERS_BANNED = (
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
