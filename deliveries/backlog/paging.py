"""Pages the rest of a backlog from the database into Redis, in publish order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane
from deliveries.backlog.records import Lane, Page, PageRequest, key_digest
from deliveries.rules.payload import INLINE_BYTES, LEAN_BYTES, wire_text
from deliveries.rules.taskmessage import TaskTemplate, escape_message, escape_text, reference
from deliveries.store import lanerows, statements
from deliveries.store.lostoffers import forget_lost, lost_before
from subscriptions.selectors import push_settings_of

#: Larger pages are not cheaper per message, and the worker's other threads wait while a page is rendered.
PAGE_ROWS = 500


def page_in(requests: Sequence[PageRequest]) -> None:
    """Read the next page of each lane and offer it. Deliveries that Redis has are left out."""
    ranges = [_range_of(request) for request in requests]
    pages = statements.read_pages(ranges)
    turned = _turn_back([request for request in requests if request.is_ordered])
    read = [it for it in zip(requests, ranges, pages, strict=True) if it[0].lane not in turned]
    # Redis has had the rows that are read again. One that is settled before the page arrives would go out twice.
    again = {
        request.lane: [row.message_id for row in rows if row.message_id <= request.read_to] for request, _, rows in read
    }
    missing = missing_in_redis(again)
    offered = []
    for request, wanted, rows in read:
        next_id = rows[-1].message_id + 1 if rows else request.from_id
        is_last = len(rows) < wanted.limit
        rows = [row for row in rows if row.message_id > request.read_to or (*request.lane, row.message_id) in missing]
        orderings = [key_digest(row.ordering_key) for row in rows] if request.is_ordered else []
        messages = render_rows(request.lane, rows, generation=request.generation)
        offered.append(Page(request, messages, next_id, is_last, orderings))
    default_backlog().offer_pages(offered)


def _range_of(request: PageRequest) -> statements.PageRange:
    inline_bytes = LEAN_BYTES if request.is_lean else INLINE_BYTES
    rows = min(request.rows, PAGE_ROWS)
    return statements.PageRange(*request.lane, request.from_id, rows, inline_bytes, is_fresh=request.is_probe)


def _turn_back(requests: Sequence[PageRequest]) -> set[Lane]:
    """Let ordered lanes that have read beyond what Redis was not told of begin anew, and return them."""
    from_ids = {(it.lane.subscription_id, it.lane.region): it.from_id for it in requests}
    lost = lost_before(from_ids)
    for lane, keys in lost.items():
        subscription = push_settings_of(lane[0])
        if subscription is not None:
            configure_lane(Lane(*lane), subscription, action="spill")
        forget_lost(keys)
    return {Lane(*lane) for lane in lost}


def missing_in_redis(message_ids: Mapping[Lane, Sequence[int]]) -> set[tuple[int, str, int]]:
    """Return the deliveries that the database owes and Redis does not have: lanes and message ids.

    Settled deliveries leave the database first, so the database is asked last.
    """
    unknown = default_backlog().missing({lane: list(map(str, ids)) for lane, ids in message_ids.items()})
    deliveries = [(*lane, int(name)) for lane, names in unknown.items() for name in names]
    return lanerows.waiting_among(deliveries) if deliveries else set()


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
