"""Pages the rest of a backlog from the database into Redis, in publish order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane
from deliveries.backlog.records import Lane, PageRequest
from deliveries.rules.payload import INLINE_BYTES, LEAN_BYTES, wire_text
from deliveries.rules.taskmessage import TaskTemplate, escape_message, escape_text, reference
from deliveries.store import lanerows, statements
from deliveries.store.lostoffers import forget_lost, lost_before
from subscriptions.selectors import PushSettings, push_settings_of

#: Larger pages are not cheaper per message, and the worker's other threads wait while a page is rendered.
PAGE_ROWS = 500


def page_in(request: PageRequest) -> None:
    """Read the next page of a lane and offer it. Deliveries that Redis has are left out."""
    lane = request.lane
    size = min(request.rows, PAGE_ROWS)
    rows = statements.read_page(
        subscription_id=lane.subscription_id,
        region=lane.region,
        from_id=request.from_id,
        limit=size,
        inline_bytes=LEAN_BYTES if request.is_lean else INLINE_BYTES,
    )
    subscription = push_settings_of(lane.subscription_id)
    is_ordered = subscription is not None and subscription.ordered
    if subscription is not None and is_ordered and _turns_back(request, subscription):
        return
    is_last = len(rows) < size
    next_id = rows[-1].message_id + 1 if rows else request.from_id
    # Redis has had the rows that are read again. One that is settled before the page arrives would go out twice.
    missing = missing_in_redis(lane, [row.message_id for row in rows if row.message_id <= request.read_to])
    rows = [row for row in rows if row.message_id > request.read_to or row.message_id in missing]
    orderings = [digest(row.ordering_key) for row in rows] if is_ordered else []
    default_backlog().offer_page(
        request,
        render_rows(lane, rows, generation=request.generation),
        next_id=next_id,
        complete=is_last,
        orderings=orderings,
    )


def _turns_back(request: PageRequest, subscription: PushSettings) -> bool:
    """Let an ordered lane begin anew if it has read beyond what Redis was not told of. Return whether it has."""
    lost = lost_before(request.from_id, subscription_id=request.lane.subscription_id, region=request.lane.region)
    if lost:
        configure_lane(request.lane, subscription, action="spill")
        forget_lost(lost)
    return bool(lost)


def missing_in_redis(lane: Lane, message_ids: Sequence[int]) -> set[int]:
    """Return the deliveries that the database owes and Redis does not have.

    Settled deliveries leave the database first, so the database is asked last.
    """
    known = default_backlog().known(lane, message_ids)
    unknown = [message_id for message_id, is_known in zip(message_ids, known, strict=True) if not is_known]
    return set(lanerows.still_waiting(subscription_id=lane.subscription_id, region=lane.region, message_ids=unknown))


def digest(ordering_key: str) -> str:
    """Return the short form of an ordering key that Redis holds; "" for no key."""
    return hashlib.blake2s(ordering_key.encode(), digest_size=12).hexdigest() if ordering_key else ""


def render_rows(lane: Lane, rows: Sequence[statements.PageRow], *, generation: str) -> list[tuple[int, str]]:
    """Return the Celery messages of deliveries from the database, with the number of their next attempts."""
    templates: dict[tuple[int, int], TaskTemplate] = {}
    rendered = []
    for row in rows:
        template = templates.get((row.attempts, row.seek))
        if template is None:
            template = templates[row.attempts, row.seek] = TaskTemplate(
                subscription_id=lane.subscription_id,
                region=lane.region,
                attempt=row.attempts + 1,
                generation=generation,
                seek=row.seek,
            )
        if row.data is None:
            text = escape_message(reference(row.message_id))
        else:
            text = escape_text(wire_text(row.message_id, row.data, row.attributes, row.ordering_key))
        rendered.append((row.message_id, template.render(str(row.message_id), text)))
    return rendered
