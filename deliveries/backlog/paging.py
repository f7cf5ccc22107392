"""Pages the rest of a backlog from the database into Redis, in publish order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane
from deliveries.backlog.records import Lane, Page, PageRequest, is_left, key_digest
from deliveries.rules.payload import INLINE_BYTES, LEAN_BYTES, wire_text
from deliveries.rules.taskmessage import TaskTemplate, escape_message, escape_text, reference
from deliveries.store import lanerows, statements
from deliveries.store.lostoffers import forget_lost, lost_before
from subscriptions.selectors import push_settings_of

#: Larger pages are not cheaper per message, and the worker's other threads wait while a page is rendered.
PAGE_ROWS = 500
#: The ordering keys that are compared with a digest at once.
KEYS_TOGETHER = 2000


def page_in(requests: Sequence[PageRequest]) -> None:
    """Read the next page of each lane and offer it."""
    of_keys = [request for request in requests if request.is_of_keys]
    of_lanes = [request for request in requests if not request.is_of_keys]
    pages = [_read_keys(request) for request in of_keys]
    turned = _turn_back(of_keys)
    pages = [page for page in pages if page.request.lane not in turned]
    if of_lanes:
        pages += _read_next(of_lanes)
    default_backlog().offer_pages(pages)


def _read_next(requests: Sequence[PageRequest]) -> list[Page]:
    """Read the next rows of each lane, without deliveries that Redis has or that the lane leaves to the database."""
    ranges = [_range_of(request) for request in requests]
    rows_of = statements.read_pages(ranges)
    turned = _turn_back([request for request in requests if request.is_ordered])
    read = [it for it in zip(requests, ranges, rows_of, strict=True) if it[0].lane not in turned]
    # Redis has had the rows that are read again. One that is settled before the page arrives would go out twice.
    again = {
        request.lane: [row.message_id for row in rows if row.message_id <= request.read_to] for request, _, rows in read
    }
    missing = missing_in_redis(again)
    pages = []
    for request, wanted, rows in read:
        next_id = rows[-1].message_id + 1 if rows else request.from_id
        is_last = len(rows) < wanted.limit
        rows = [row for row in rows if row.message_id > request.read_to or (*request.lane, row.message_id) in missing]
        if request.keys:
            rows = [row for row in rows if not is_left(row.message_id, row.ordering_key, request.keys)]
            if len(rows) > request.rows:
                rows = rows[: request.rows]
                next_id, is_last = rows[-1].message_id + 1, False
        pages.append(_page_of(request, rows, next_id, is_last=is_last))
    return pages


def _read_keys(request: PageRequest) -> Page:
    """Read the next rows of ordering keys, from what the lane has left of each on."""
    limit = max(min(request.rows, PAGE_ROWS // len(request.keys)), 1)
    rows_of = _rows_of_keys(request, request.keys, limit=limit + 1)  # one more, which says where to read on
    first_ids = {key: _first_of_key(request.lane, key, request.keys[key]) for key, rows in rows_of.items() if not rows}
    rows_of |= _rows_of_keys(request, {key: it for key, it in first_ids.items() if it is not None}, limit=limit + 1)
    next_ids = {key: rows[limit].message_id if len(rows) > limit else "" for key, rows in rows_of.items()}
    return _page_of(request, [row for rows in rows_of.values() for row in rows[:limit]], next_ids)


def _rows_of_keys(
    request: PageRequest, first_ids: Mapping[str, int], *, limit: int
) -> dict[str, list[statements.PageRow]]:
    """Return the next rows of ordering keys, each from one of its messages on."""
    ranges = [
        statements.PageRange(*request.lane, first_id, limit, _inline_bytes(request), of_key=True)
        for first_id in first_ids.values()
    ]
    return dict(zip(first_ids, statements.read_pages(ranges), strict=True)) if ranges else {}


def _first_of_key(lane: Lane, key: str, from_id: int) -> int | None:
    """Return the first message of an ordering key from an id on, if the message that had this id is gone."""
    if statements.ordering_keys([from_id]):
        return None
    # The message is gone, and with it the name of its key.
    name = ""
    while first_ids := statements.first_of_keys(*lane, from_id, after=name, limit=KEYS_TOGETHER):
        for name, first_id in first_ids:
            if key_digest(name) == key:
                return first_id
    return None


def _page_of(
    request: PageRequest,
    rows: Sequence[statements.PageRow],
    next_id: int | Mapping[str, int | str],
    *,
    is_last: bool = False,
) -> Page:
    orderings = [key_digest(row.ordering_key) for row in rows] if request.is_ordered else []
    return Page(request, render_rows(request.lane, rows, generation=request.generation), next_id, is_last, orderings)


def _range_of(request: PageRequest) -> statements.PageRange:
    rows = PAGE_ROWS if request.keys else min(request.rows, PAGE_ROWS)
    return statements.PageRange(*request.lane, request.from_id, rows, _inline_bytes(request), is_fresh=request.is_probe)


def _inline_bytes(request: PageRequest) -> int:
    return LEAN_BYTES if request.is_lean else INLINE_BYTES


def _turn_back(requests: Sequence[PageRequest]) -> set[Lane]:
    """Let ordered lanes that have read beyond what Redis was not told of begin anew, and return them.

    A page of keys may be beyond whatever that was.
    """
    from_ids = {
        (it.lane.subscription_id, it.lane.region): statements.LAST_ID if it.is_of_keys else it.from_id
        for it in requests
    }
    lost = lost_before(from_ids)
    for lane, keys in lost.items():
        _begin_anew(Lane(*lane))
        forget_lost(keys)
    return {Lane(*lane) for lane in lost}


def _begin_anew(lane: Lane) -> None:
    """Let an ordered lane read all that it is owed again."""
    subscription = push_settings_of(lane.subscription_id)
    if subscription is not None:
        configure_lane(lane, subscription, action="spill")


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
