"""What the engine owns and the console shows."""

from __future__ import annotations

from typing import Any

from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property

from deliveries.inspection.texts import count_text
from deliveries.rules.ids import publish_time
from pushhub.common.clock import time_text
from subscriptions.console.base import UNCHANGEABLE, ConsoleAdmin


def publish_time_shown(message_id: int) -> str:
    """Return the publish time of a message as the console writes times."""
    return time_text(publish_time(message_id), milliseconds=True)


class MoreThan(int):
    """The number of rows that pages have, of more rows, which are not counted. Django's templates show it as such."""

    def __str__(self) -> str:
        return count_text(self + 1, most=self)


class UncountedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages of the first rows, up to a bound: a table of millions isn't counted."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        counted = rows.order_by().values("pk")[: self.MOST + 1].count()
        return counted if counted <= self.MOST else MoreThan(self.MOST)


class ReadOnlyAdmin(ConsoleAdmin):
    """Rows that only the engine writes."""

    refused = UNCHANGEABLE
    show_full_result_count = False
    paginator = UncountedPaginator
    list_per_page = 50

    def confirmation(self, request: HttpRequest, question: str, **context: Any) -> HttpResponse:
        """Return a page that asks before something is destroyed; its button sends the same form, confirmed.

        It needs a `title`, the button's `label`, and the address `back`.
        """
        fields = ((name, value) for name, values in request.POST.lists() for value in values)
        sent = [(name, value) for name, value in fields if name != "csrfmiddlewaretoken"]
        return self.render(request, "admin/deliveries/confirm.html", question=question, sent=sent, **context)
