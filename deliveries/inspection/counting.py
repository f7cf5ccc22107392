"""Sentences on how far pushes are counted into the metrics, in the reader's language."""

from __future__ import annotations

from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deliveries.models import CountingLease
from deliveries.telemetry.series.coverage import Counting
from pushhub.common.clock import time_text

#: Why nothing is counted without a journal.
NOT_COUNTED = gettext_lazy("The journal is switched off (PUSHHUB_JOURNAL), so nothing is counted.")


def counting_level(state: Counting) -> str:
    """Return "good", or "warn" if no counter runs."""
    return "good" if state.runs else "warn"


def counting_text(state: Counting) -> str:
    """Return until when pushes are counted, and which counter counts."""
    if state.counted_to is None:
        return _("Nothing has been counted yet: no maintenance worker ran.") if settings.JOURNAL else str(NOT_COUNTED)
    words = {"time": time_text(state.counted_to)}
    if not state.runs:
        return _("Counting has stopped: counted up to %(time)s. No counter gives a sign of life.") % words
    if state.counter == CountingLease.Counter.SPARK:
        text = _("Counted up to %(time)s by Spark.") % words
    else:
        text = _("Counted up to %(time)s by the embedded counter.") % words
    if state.waiting:
        text += " " + _("Segments that wait: %(count)d.") % {"count": state.waiting}
    return text
